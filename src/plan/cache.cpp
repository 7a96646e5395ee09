#include "plan/cache.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/environment.hpp"
#include "rotunda/info.hpp"
#include "rotunda/plan.hpp"

namespace rotunda {
namespace {

// Plans of a training loop with packed batches come and go; a few hundred are some megabytes.
constexpr std::size_t kPlans = 256;

/// What a choice of schedule and shard depends on.
std::string choice_key(const Problem& problem, const PlanOptions& options, int ranks) {
  const auto name = [](const auto& value) { return value ? to_string(*value) : "auto"; };
  return fmt::format("{}|{}|schedule={} backward={} mixes={} inner={} groups={} shard={} chunk={} for={}",
                     to_text(problem), ranks, name(options.schedule), name(options.backward_schedule), options.mixes,
                     options.inner, options.head_groups, name(options.shard), options.chunk_size, options.shard_for);
}

}  // namespace

std::string plan_cache_key(const Problem& problem, const PlanOptions& options, int rank, int ranks) {
  std::vector<std::string> disabled = disabled_components();
  return fmt::format(
      "{}|{}|rank={} kernel={} transport={} device={} devices={} threads={} scratch={} machine={} disabled={} cache={}",
      version(), choice_key(problem, options, ranks), rank, options.kernel, options.transport,
      options.device ? to_string(*options.device) : "auto", fmt::join(options.devices, ","), options.threads,
      options.kernel_scratch, options.machine ? to_text(*options.machine) : "auto", fmt::join(disabled, ","),
      calibration_file());
}

std::shared_ptr<const Plan> cached_plan(const Problem& problem, const PlanOptions& options, int rank, int ranks) {
  static Memo<Plan> memo(kPlans);
  return memo.get(plan_cache_key(problem, options, rank, ranks),
                  [&] { return make_plan(problem, options, rank, ranks); });
}

std::shared_ptr<const Choice> cached_choice(const Problem& problem, const PlanOptions& options, int ranks,
                                            const Kernel& kernel, const Device& device, const Machine& machine) {
  static Memo<Choice> memo(kPlans);
  const std::string key = fmt::format("{}|kernel={} device={} machine={}", choice_key(problem, options, ranks),
                                      kernel.name(), to_string(device), to_text(machine));
  return memo.get(key, [&] {
    return std::make_shared<const Choice>(choose_schedule(problem, options, ranks, kernel, device, machine));
  });
}

}  // namespace rotunda
