#include "rotunda/plan.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <thread>

#include "base/fail.hpp"
#include "base/fnv.hpp"
#include "base/log.hpp"
#include "plan/cache.hpp"
#include "plan/selection.hpp"
#include "schedule/step_lists.hpp"

namespace rotunda {
namespace {

std::string text(const ScheduleOptions& options) {
  std::string result = to_string(options.kind);
  if (options.inner > 0) result += fmt::format(" inner {}", options.inner);
  return result;
}

/// Everything that ranks must agree on, as text.
std::string signature(const Plan& plan) {
  std::string result =
      fmt::format("{}|{}|{}|{}|{}|{}|{}|{}", to_text(plan.problem), plan.ranks, text(plan.forward_schedule),
                  text(plan.backward_schedule), plan.forward_schedule.head_groups, plan.kernel, plan.transport,
                  to_string(plan.device.kind));
  for (const TokenMap* map : {&plan.shard.q, &plan.shard.k}) {
    result += fmt::format("|{}/{}", map->tokens(), map->stride());
    for (int rank = 0; rank < map->ranks(); ++rank) {
      for (const Run& run : map->runs(rank)) result += fmt::format(",{}:{}+{}", rank, run.token, run.len);
    }
  }
  return result;
}

/// Device, kernel and transport. What can't be served is told all at once.
const Kernel& choose_components(Plan& plan) {
  std::vector<std::string> reasons;
  const Kernel* kernel = nullptr;
  const auto attempt = [&](auto&& choose) {
    try {
      choose();
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::unsupported) throw;
      const bool known = std::find(reasons.begin(), reasons.end(), error.what()) != reasons.end();
      if (!known) reasons.emplace_back(error.what());
    }
  };
  attempt([&] { plan.device = choose_device(plan.problem, plan.options, plan.rank, plan.refusals); });
  attempt([&] { kernel = &choose_kernel(plan.problem, plan.options, plan.device, plan.refusals); });
  attempt([&] { plan.transport = choose_transport(plan.options, plan.device, plan.refusals); });
  if (!reasons.empty()) throw Error(ErrorKind::unsupported, fmt::format("{}", fmt::join(reasons, "; ")));
  plan.kernel = kernel->name();
  return *kernel;
}

/// Raises the kernel's scratch to what a program's calls need, and adds its lists. @throws Error unsupported
void add_workspace(Plan& plan, const Kernel& kernel, const Program& program) {
  for (CallShape& call : calls_of(program, plan.threads, plan.device)) {
    call.scratch = plan.options.kernel_scratch;
    if (auto reason = kernel.refuse_call(plan.problem, call)) {
      fail(ErrorKind::unsupported, "kernel {} can't serve rank {}: {}", kernel.name(), plan.rank, *reason);
    }
    plan.kernel_workspace_bytes = std::max(plan.kernel_workspace_bytes, kernel.workspace_bytes(plan.problem, call));
  }
  if (plan.device.is_cuda()) plan.list_bytes += list_bytes(program);
}

int default_threads(int ranks) {
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()) / ranks);
}

}  // namespace

std::vector<CallShape> calls_of(const Program& program, int threads, const Device& device) {
  std::vector<CallShape> calls;
  const auto add = [&](const auto& step) -> CallShape& {
    return calls.emplace_back(CallShape{.slices = step.slices,
                                        .batch = program.buffer(step.q).batch,
                                        .rows_q = step.q.rows,
                                        .rows_k = step.k.rows,
                                        .heads_q = static_cast<int>(step.q.heads),
                                        .heads_kv = static_cast<int>(step.k.heads),
                                        .threads = threads,
                                        .device = device});
  };
  for (const Step& step : program.steps) {
    if (const auto* attend = std::get_if<Attend>(&step)) {
      CallShape& call = add(*attend);
      call.init = attend->init;
      call.last = attend->last;
    } else if (const auto* back = std::get_if<AttendBackward>(&step)) {
      CallShape& call = add(*back);
      call.backward = true;
      call.init_dq = back->init_dq;
      call.init_dkv = back->init_dkv;
      call.narrow_dq = program.buffer(back->dq).dtype != DType::fp32;
      call.narrow_dkv = program.buffer(back->dk).dtype != DType::fp32;
    }
  }
  return calls;
}

std::int64_t Plan::peak_bytes() const {
  return std::max(forward.workspace_bytes, backward ? backward->workspace_bytes : 0) + kernel_workspace_bytes +
         list_bytes;
}

std::string Plan::summary() const {
  std::string schedule = text(forward_schedule);
  if (backward && !(backward_schedule == forward_schedule)) schedule += " / " + text(backward_schedule);
  return fmt::format("{}, {}, {}, {}", schedule, to_string(shard.kind), kernel, transport);
}

std::shared_ptr<const Plan> make_plan(const Problem& problem, const PlanOptions& options, int rank, int ranks) {
  if (ranks < 1 || rank < 0 || rank >= ranks) {
    fail(ErrorKind::bad_input, "rank {} of {}; allowed: at least 1 rank, ranks counted from 0", rank,
         counted(ranks, "rank"));
  }
  if (options.threads < 0) fail(ErrorKind::bad_input, "threads={}; allowed: 1 or more, 0 for auto", options.threads);
  if (options.head_groups < 0) {
    fail(ErrorKind::bad_input, "head_groups={}; allowed: 1 or more, 0 for auto", options.head_groups);
  }
  if (options.kernel_scratch < 0) {
    fail(ErrorKind::bad_input, "kernel_scratch={}; allowed: 1 or more bytes, 0 for the kernel's default",
         options.kernel_scratch);
  }
  auto plan = std::make_shared<Plan>();
  plan->problem = problem;
  normalize(plan->problem);
  plan->options = options;
  plan->rank = rank;
  plan->ranks = ranks;
  plan->threads = options.threads > 0 ? options.threads : default_threads(ranks);
  const Kernel& kernel = choose_components(*plan);
  plan->machine = options.machine ? *options.machine : machine_of(plan->problem, kernel, plan->device, plan->threads);
  const std::shared_ptr<const Choice> choice =
      cached_choice(plan->problem, options, ranks, kernel, plan->device, plan->machine);
  plan->forward_schedule = choice->forward;
  plan->backward_schedule = choice->backward;
  plan->shard = choice->shard;
  plan->refusals.insert(plan->refusals.end(), choice->refusals.begin(), choice->refusals.end());
  plan->forward = make_program(plan->problem, plan->shard, plan->forward_schedule, rank, false);
  add_workspace(*plan, kernel, plan->forward);
  if (plan->problem.grad) {
    plan->backward = make_program(plan->problem, plan->shard, plan->backward_schedule, rank, true);
    add_workspace(*plan, kernel, *plan->backward);
    plan->takes_scratch = kernel.capabilities().takes_scratch;
  }
  if (!kernel.capabilities().accumulates) {
    plan->partials = std::max(partials(plan->forward), plan->backward ? partials(*plan->backward) : 1);
  }
  plan->hash = fnv1a(signature(*plan));
  if (rank == 0) log(LogLevel::info, "{} for {}", plan->summary(), to_text(plan->problem));
  return plan;
}

}  // namespace rotunda
