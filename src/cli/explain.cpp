#include <algorithm>
#include <cmath>

#include "base/fail.hpp"
#include "cli/atomic_file.hpp"
#include "cli/cluster.hpp"
#include "cli/commands.hpp"
#include "cli/drawing.hpp"
#include "cli/picture.hpp"
#include "cli/record.hpp"
#include "cli/setup.hpp"
#include "cli/simulate.hpp"
#include "cli/table.hpp"
#include "cli/terminal.hpp"
#include "cli/trace.hpp"

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

/// Adds the steps of one direction to the ranks' events, at the times predicted. Returns when they end.
double predict(const Plans& plans, bool backward, double start, const Machine& machine,
               std::vector<RankReport>& reports) {
  std::vector<Program> programs;
  for (const auto& plan : plans) programs.push_back(backward ? *plan->backward : plan->forward);
  const Simulation simulation = simulate(plans.front()->problem, plans.front()->shard, programs, machine, 1);
  for (std::size_t rank = 0; rank < reports.size(); ++rank) {
    for (const Interval& each : simulation.ranks[rank].intervals) {
      reports[rank].events.push_back({each.compute ? TraceEvent::Lane::compute : TraceEvent::Lane::communication,
                                      each.label, start + each.begin, start + each.end});
    }
  }
  return start + simulation.seconds;
}

/// What a run would report, as far as it is planned.
std::vector<RankReport> planned_reports(const Plans& plans) {
  std::vector<RankReport> reports;
  for (const auto& plan : plans) reports.push_back({plan, {.workspace_bytes = plan->peak_bytes()}, {}, {}});
  return reports;
}

void write_predicted_trace(const std::string& path, const Plans& plans, const Machine& machine) {
  std::vector<RankReport> reports = planned_reports(plans);
  const double end = predict(plans, false, 0, machine, reports);
  if (plans.front()->backward) predict(plans, true, end, machine, reports);
  write_trace(path, reports);
}

void append_plan(const Options& options, const Plans& plans) {
  Record record = record_of("explain", to_text(plans.front()->problem), options, planned_reports(plans));
  record.exposed_ms = NAN;  // nothing was run
  append_json(options.json, {to_json(record)});
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
  const Machine machine = options.cluster.empty() ? Machine{} : find_cluster(options.cluster);
  if (!options.trace.empty()) write_predicted_trace(options.trace, plans, machine);
  if (!options.json.empty()) append_plan(options, plans);
  if (!options.svg.empty()) {
    write_text(options.svg, draw_plan(plans, machine));
    text += fmt::format("\npicture written to {}\n", options.svg);
  }
  print(options, text);
  return 0;
}

}  // namespace rotunda::cli
