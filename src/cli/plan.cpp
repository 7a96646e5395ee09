#include <algorithm>

#include "base/fail.hpp"
#include "cli/cluster.hpp"
#include "cli/commands.hpp"
#include "cli/record.hpp"
#include "cli/setup.hpp"
#include "cli/table.hpp"
#include "cli/terminal.hpp"

namespace rotunda::cli {
namespace {

struct Row {
  int ranks = 1;
  ScheduleOptions backward;
  Candidate candidate;
};

/// The schedule on the shard that the machine is predicted to be fastest on.
Row best_shard(const Problem& problem, const Options& options, ScheduleKind kind, int ranks, const Machine& machine) {
  const auto schedule = [&](ScheduleKind each) {
    return ScheduleOptions{each, each == ScheduleKind::a2a_p2p ? options.plan.inner : 0, options.plan.head_groups};
  };
  Row row{ranks, schedule(options.plan.backward_schedule.value_or(kind)), {}};
  bool found = false;
  for (const ShardKind shard_kind : shards_allowed(problem, options.plan, ranks)) {
    const std::int64_t chunk = shard_kind == ShardKind::balanced ? options.plan.chunk_size : 0;
    const Shard shard = make_shard(problem, shard_kind, ranks, chunk);
    const Candidate candidate = evaluate(problem, shard, schedule(kind), row.backward, machine);
    if (!found || candidate.seconds < row.candidate.seconds) row.candidate = candidate;
    found = true;
  }
  return row;
}

std::vector<Row> all_rows(const Problem& problem, const Options& options, const Machine& machine) {
  std::vector<int> counts{1, 2, 4, 8};
  if (options.ranks) counts = {*options.ranks};
  std::vector<Row> rows;
  for (const int ranks : counts) {
    for (const ScheduleKind kind : kScheduleKinds) {
      if (options.plan.schedule && *options.plan.schedule != kind) continue;
      if (!options.plan.schedule && ranks == 1 && kind != ScheduleKind::p2p) continue;  // all the same
      rows.push_back(best_shard(problem, options, kind, ranks, machine));
    }
  }
  return rows;
}

double balance(const Candidate& candidate) {
  return candidate.forward_max.flops == 0 ? 1 : candidate.forward_flops_mean / candidate.forward_max.flops;
}

std::string rows_text(const Problem& problem, const std::vector<Row>& rows, bool times) {
  std::vector<std::string> header{"ranks",    "schedule", "shard",    "FLOP",     "balance",
                                  "received", "exposed",  "messages", "workspace"};
  if (problem.grad) header.insert(header.begin() + 2, "backward");
  if (times) header.emplace_back("ms");
  Table table(header, problem.grad ? 4 : 3);
  for (const Row& row : rows) {
    const Cost &f = row.candidate.forward_max, &b = row.candidate.backward_max;
    std::vector<std::string> cells{fmt::format("{}", row.ranks),
                                   to_string(row.candidate.schedule.kind),
                                   to_string(row.candidate.shard),
                                   flops_text(f.flops + b.flops),
                                   fmt::format("{:.0f} %", 100 * balance(row.candidate)),
                                   bytes_text(f.bytes_received + b.bytes_received),
                                   bytes_text(f.exposed_bytes + b.exposed_bytes),
                                   grouped(f.messages + b.messages),
                                   bytes_text(std::max(f.workspace_bytes, b.workspace_bytes))};
    if (problem.grad) cells.insert(cells.begin() + 2, to_string(row.backward.kind));
    if (times) cells.push_back(figure(1e3 * row.candidate.seconds));
    table.add(cells);
  }
  return table.text();
}

nlohmann::ordered_json cost_json(const Cost& cost) {
  return {{"flops", cost.flops},
          {"pairs", cost.pairs},
          {"bytes_sent", cost.bytes_sent},
          {"bytes_received", cost.bytes_received},
          {"exposed_bytes", cost.exposed_bytes},
          {"messages", cost.messages},
          {"workspace_bytes", cost.workspace_bytes}};
}

nlohmann::ordered_json row_json(const std::string& text, const Row& row, const std::string& cluster, bool grad) {
  nlohmann::ordered_json json{{"problem", text},
                              {"ranks", row.ranks},
                              {"schedule", to_string(row.candidate.schedule.kind)},
                              {"backward_schedule", to_string(row.backward.kind)},
                              {"shard", to_string(row.candidate.shard)},
                              {"balance", balance(row.candidate)},
                              {"forward", cost_json(row.candidate.forward_max)},
                              {"backward", nullptr},
                              {"cluster", nullptr},
                              {"ms", nullptr}};
  if (grad) json["backward"] = cost_json(row.candidate.backward_max);
  if (!cluster.empty()) {
    json["cluster"] = cluster;
    json["ms"] = 1e3 * row.candidate.seconds;
  }
  return json;
}

/// Flags that no figure below depends on are checked as any other command would, on the simplest schedule.
void refuse_what_cannot_run(const Problem& problem, const Options& options) {
  PlanOptions flags = options.plan;
  const bool nothing_asked =
      flags.kernel.empty() && flags.transport.empty() && flags.device.empty() && flags.inner == 0;
  if (nothing_asked) return;
  if (!flags.schedule && flags.inner == 0) flags.schedule = ScheduleKind::p2p;
  if (!flags.shard && flags.chunk_size == 0) flags.shard = ShardKind::contiguous;
  (void)make_plan(problem, flags, 0, options.ranks_or_default());
}

}  // namespace

int plan(const Options& options) {
  if (!options.trace.empty()) {
    fail(ErrorKind::bad_input, "--trace {}: plan compares many schedules and runs none; explain and run write a trace",
         options.trace);
  }
  const Problem problem = required_problem(options);
  refuse_what_cannot_run(problem, options);
  const bool times = !options.cluster.empty();
  const Machine machine = times ? find_cluster(options.cluster) : Machine{};
  const auto rows = all_rows(problem, options, machine);
  std::string text =
      fmt::format("{}\nof the costliest rank, {}; tensors themselves not counted\n\n{}", to_text(problem),
                  problem.grad ? "forward and backward together" : "forward", rows_text(problem, rows, times));
  if (times) text += fmt::format("\nms are predicted for machine {}\n", machine.name);
  print(options, text);
  if (!options.json.empty()) {
    std::vector<nlohmann::ordered_json> json;
    for (const Row& row : rows)
      json.push_back(row_json(to_text(problem), row, times ? machine.name : "", problem.grad));
    append_json(options.json, json);
  }
  return 0;
}

}  // namespace rotunda::cli
