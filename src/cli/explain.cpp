#include <sstream>

#include "base/fail.hpp"
#include "cli/atomic_file.hpp"
#include "cli/build_info.hpp"
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
constexpr std::size_t kShownInFull = 4;

std::string problem_text(const Problem& problem) {
  const auto slices = mask_slices(problem);
  return fmt::format("problem  {}\n         {} slice{}, {} visible (row, key) pairs a head, {}FLOP forward\n",
                     to_text(problem), grouped(static_cast<std::int64_t>(slices.size())), slices.size() == 1 ? "" : "s",
                     count_text(count_pairs(slices)), flops_text(forward_flops(problem)));
}

std::string choices_text(const Plan& plan) {
  std::string text =
      fmt::format("plan     {}, {} a rank, hash {:016x}\n", plan.summary(), counted(plan.threads, "thread"), plan.hash);
  text += fmt::format("machine  {}: {}FLOP/s of attention and {}B/s of link a rank, {} µs a message\n",
                      plan.machine.name, flops_text(plan.machine.flops_per_second),
                      flops_text(plan.machine.bytes_per_second), figure(1e6 * plan.machine.seconds_per_message));
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

/// The plans whose programs are shown.
Plans shown(const Options& options, const Plans& plans) {
  if (options.all_ranks || plans.size() <= kShownInFull) return plans;
  return {plans.front()};
}

nlohmann::ordered_json schedule_json(const ScheduleOptions& schedule) {
  return {{"inner", schedule.inner}, {"head_groups", schedule.head_groups}};
}

/// Runs of tokens in the order of a rank's rows, as [first token, tokens] each, by rank.
nlohmann::ordered_json map_json(const TokenMap& map) {
  nlohmann::ordered_json ranks = nlohmann::ordered_json::array();
  for (int rank = 0; rank < map.ranks(); ++rank) {
    nlohmann::ordered_json runs = nlohmann::ordered_json::array();
    for (const Run& run : map.runs(rank)) runs.push_back({run.token, run.len});
    ranks.push_back(runs);
  }
  return {{"stride", map.stride()}, {"ranks", ranks}};
}

/// A step a line.
std::vector<std::string> lines_of(const Program& program) {
  std::istringstream text(to_text(program));
  std::vector<std::string> lines;
  for (std::string line; std::getline(text, line);) lines.push_back(line);
  return lines;
}

nlohmann::ordered_json explanation_json(const Options& options, const Plans& plans) {
  const Plan& first = *plans.front();
  nlohmann::ordered_json machine;
  for_fields(first.machine, [&](const char* name, const auto& value) { machine[name] = value; });
  nlohmann::ordered_json refusals = nlohmann::ordered_json::array(), costs = refusals, programs = refusals;
  for (const Refusal& each : first.refusals) {
    refusals.push_back({{"what", each.what}, {"because", each.reason}, {"unsupported", each.unsupported}});
  }
  const auto add = [](nlohmann::ordered_json& to, const Plan& plan, auto&& describe) {
    to.push_back({{"rank", plan.rank}, {"forward", describe(plan.forward)}, {"backward", nullptr}});
    if (plan.backward) to.back()["backward"] = describe(*plan.backward);
  };
  for (const auto& plan : plans) {
    add(costs, *plan, [&](const Program& program) { return to_json(cost(plan->problem, program)); });
  }
  for (const auto& plan : shown(options, plans)) add(programs, *plan, lines_of);
  return {{"name", "explain"},
          {"problem", to_text(first.problem)},
          {"ranks", first.ranks},
          {"schedule", to_string(first.forward_schedule.kind)},
          {"backward_schedule", to_string(first.backward_schedule.kind)},
          {"forward", schedule_json(first.forward_schedule)},
          {"backward", schedule_json(first.backward_schedule)},
          {"shard", to_string(first.shard.kind)},
          {"kernel", first.kernel},
          {"transport", first.transport},
          {"device", to_string(first.device)},
          {"threads", first.threads},
          {"hash", fmt::format("{:016x}", first.hash)},
          {"machine", machine},
          {"not_chosen", refusals},
          {"query_tokens", map_json(first.shard.q)},
          {"key_tokens", map_json(first.shard.k)},
          {"costs", costs},
          {"steps", programs},
          {"versions", versions()},
          {"date", today()},
          {"command", options.command_line}};
}

/// What the ranks are predicted to do when, forward and then backward. Events by rank.
std::vector<std::vector<TraceEvent>> time_line(const Plans& plans) {
  std::vector<std::vector<TraceEvent>> events(plans.size());
  double begin = 0;
  for (const bool backward : {false, true}) {
    if (backward && !plans.front()->backward) break;
    const Simulation simulation = simulate(plans, backward, plans.front()->machine, 1);
    for (std::size_t rank = 0; rank < plans.size(); ++rank) {
      for (const Interval& each : simulation.ranks[rank].intervals) {
        const auto lane = each.compute ? TraceEvent::Lane::compute : TraceEvent::Lane::communication;
        events[rank].push_back({lane, each.label, begin + each.begin, begin + each.end});
      }
    }
    begin += simulation.seconds;
  }
  return events;
}

}  // namespace

int explain(const Options& options) {
  const Problem problem = required_problem(options);
  SessionSetup setup = session_setup(options, problem);
  if (!options.cluster.empty()) setup.options.machine = find_cluster(options.cluster);
  Plans plans;
  for (int rank = 0; rank < setup.ranks; ++rank) plans.push_back(make_plan(problem, setup.options, rank, setup.ranks));
  const Plan& first = *plans.front();
  warn_of_idle_flags(options, problem, &first);
  std::string text = problem_text(problem) + choices_text(first) + "\nwho holds which tokens\n" +
                     shard_picture(problem, first.shard) + "\n" + mask_picture(problem, first.shard) +
                     "\nwhat each rank does (pairs are summed over its heads)\n" + costs_text(plans);
  const Plans some = shown(options, plans);
  for (const auto& plan : some) text += program_text(*plan);
  if (some.size() < plans.size()) {
    text += fmt::format("\nranks 1 to {} do alike; --all shows them too\n", setup.ranks - 1);
  }
  if (!options.svg.empty()) {
    write_text(options.svg, draw_plan(plans));
    text += fmt::format("\npicture written to {}\n", options.svg);
  }
  if (!options.trace.empty()) {
    write_text(options.trace, trace_text(time_line(plans)));
    text += fmt::format("\npredicted time line written to {}, for ui.perfetto.dev\n", options.trace);
  }
  if (!options.json.empty()) append_json(options.json, {explanation_json(options, plans)});
  print(options, text);
  return 0;
}

}  // namespace rotunda::cli
