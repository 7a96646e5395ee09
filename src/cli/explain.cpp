#include <algorithm>

#include "base/fail.hpp"
#include "cli/atomic_file.hpp"
#include "cli/cluster.hpp"
#include "cli/commands.hpp"
#include "cli/drawing.hpp"
#include "cli/picture.hpp"
#include "cli/record.hpp"
#include "cli/setup.hpp"
#include "cli/table.hpp"
#include "cli/terminal.hpp"

namespace rotunda::cli {
namespace {

using Plans = std::vector<std::shared_ptr<const Plan>>;

/// Programs are shown in full up to this many ranks; beyond it rank 0's, unless all are asked for.
constexpr int kShownInFull = 4;

std::string problem_text(const Problem& problem) {
  const auto slices = mask_slices(problem);
  return fmt::format("problem  {}\n         {} slice{}, {} visible (row, key) pairs a head, {}FLOP forward\n",
                     to_text(problem), grouped(static_cast<std::int64_t>(slices.size())), slices.size() == 1 ? "" : "s",
                     count_text(count_pairs(slices)), flops_text(forward_flops(problem)));
}

std::string choices_text(const Plan& plan) {
  std::string text =
      fmt::format("plan     {}, {} threads a rank, hash {:016x}\n", plan.summary(), plan.threads, plan.hash);
  if (plan.partials > 0) {
    text += fmt::format("         kernel {} leaves 16-bit results: sums of rank {} are made of at most {}\n",
                        plan.kernel, plan.rank, plan.partials);
  }
  if (plan.refusals.empty()) return text;
  Table table({"not chosen", "because"}, 2);
  for (const Refusal& refusal : plan.refusals) {
    table.add({refusal.what, refusal.reason});
  }
  return text + "\n" + table.text();
}

std::string costs_text(const Plans& plans) {
  Table table({"rank", "direction", "rows q", "rows k", "pairs", "FLOP", "sent", "received", "messages", "exposed",
               "workspace"},
              2);
  for (const auto& plan : plans) {
    const auto add = [&](const Program& program, const char* direction) {
      const Cost c = cost(plan->problem, program);
      table.add({fmt::format("{}", plan->rank), direction, grouped(plan->shard.q.rows(plan->rank)),
                 grouped(plan->shard.k.rows(plan->rank)), count_text(c.pairs), flops_text(c.flops),
                 bytes_text(c.bytes_sent), bytes_text(c.bytes_received), grouped(c.messages),
                 bytes_text(c.exposed_bytes), bytes_text(c.workspace_bytes)});
    };
    add(plan->forward, "forward");
    if (plan->backward) add(*plan->backward, "backward");
  }
  return table.text();
}

std::string program_text(const Plan& plan) {
  std::string text = fmt::format("\nrank {}, forward ({})\n{}", plan.rank, to_string(plan.forward_schedule.kind),
                                 to_text(plan.forward));
  if (plan.backward) {
    text += fmt::format("\nrank {}, backward ({})\n{}", plan.rank, to_string(plan.backward_schedule.kind),
                        to_text(*plan.backward));
  }
  return text;
}

}  // namespace

int explain(const Options& options) {
  const Problem problem = required_problem(options);
  const SessionSetup setup = session_setup(options, problem);
  Plans plans;
  for (int rank = 0; rank < setup.ranks; ++rank) plans.push_back(make_plan(problem, setup.options, rank, setup.ranks));
  const Plan& first = *plans.front();
  std::string text = problem_text(problem) + choices_text(first) + "\nwho holds which tokens\n" +
                     shard_picture(problem, first.shard) + "\n" + mask_picture(problem, first.shard) +
                     "\nwhat each rank does (pairs are summed over its heads)\n" + costs_text(plans);
  const bool all = options.all_ranks || setup.ranks <= kShownInFull;
  for (const auto& plan : plans) {
    if (all || plan->rank == 0) text += program_text(*plan);
  }
  if (!all) text += fmt::format("\nranks 1 to {} do alike; --all shows them too\n", setup.ranks - 1);
  if (!options.svg.empty()) {
    const Machine machine = options.cluster.empty() ? Machine{} : find_cluster(options.cluster);
    write_text(options.svg, draw_plan(plans, machine));
    text += fmt::format("\npicture written to {}\n", options.svg);
  }
  print(options, text);
  return 0;
}

}  // namespace rotunda::cli
