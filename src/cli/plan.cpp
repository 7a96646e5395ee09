#include <algorithm>
#include <array>
#include <optional>

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
  std::optional<Machine> machine;  ///< that the time is predicted for, where there is one
};

/// The forward schedule on the shard, with the backward one of those left open, that is predicted to be fastest.
Row best_row(const Problem& problem, const Options& options, ScheduleKind kind, int ranks, const Machine& machine) {
  const auto schedule = [&](ScheduleKind each) {
    ScheduleOptions result{each, 0, options.plan.head_groups};
    if (each == ScheduleKind::a2a_p2p) result.inner = inner_ranks(problem, {each, options.plan.inner}, ranks);
    return result;
  };
  std::optional<Row> best;
  for (const ShardKind shard_kind : shards_allowed(problem, options.plan, ranks)) {
    const std::int64_t chunk = shard_kind == ShardKind::balanced ? options.plan.chunk_size : 0;
    const Shard shard = make_shard(problem, shard_kind, ranks, chunk);
    for (const ScheduleKind backward : backward_schedules_allowed(options.plan, kind, ranks)) {
      const Candidate candidate = evaluate(problem, shard, schedule(kind), schedule(backward), machine);
      if (!best || candidate.seconds < best->candidate.seconds) best = Row{ranks, schedule(backward), candidate, {}};
    }
  }
  return *best;
}

/// Flags that no figure depends on are checked as any other command would, on the simplest schedule.
std::shared_ptr<const Plan> simplest_plan(const Problem& problem, const Options& options, int ranks) {
  PlanOptions flags = options.plan;
  if (flags.threads == 0) flags.threads = std::max(1, cores() / ranks);
  if (!flags.schedule && flags.inner == 0) flags.schedule = ScheduleKind::p2p;
  if (!flags.shard && flags.chunk_size == 0) flags.shard = ShardKind::contiguous;
  return make_plan(problem, flags, 0, ranks);
}

/// The machine to predict times for, or nothing where this one is not known.
std::optional<Machine> machine_for(const Problem& problem, const Options& options, int ranks) {
  if (!options.cluster.empty()) return find_cluster(options.cluster);
  Problem normal = problem;
  normalize(normal);
  const bool cuda = device_kind(normal, options.plan) == Device::Kind::cuda;
  if (find_calibration(cuda ? cuda_device(0) : Device{}) == nullptr) return std::nullopt;
  return simplest_plan(problem, options, ranks)->machine;
}

std::vector<Row> all_rows(const Problem& problem, const Options& options) {
  std::vector<int> counts{1, 2, 4, 8};
  if (options.ranks) counts = {*options.ranks};
  std::vector<Row> rows;
  for (const int ranks : counts) {
    const std::optional<Machine> machine = machine_for(problem, options, ranks);
    for (const ScheduleKind kind : kScheduleKinds) {
      if (options.plan.schedule && *options.plan.schedule != kind) continue;
      if (!options.plan.schedule && ranks == 1 && kind != ScheduleKind::p2p) continue;  // all the same
      rows.push_back(best_row(problem, options, kind, ranks, machine.value_or(Machine{})));
      rows.back().machine = machine;
    }
  }
  return rows;
}

double balance(const Candidate& candidate) {
  return candidate.forward_max.flops == 0 ? 1 : candidate.forward_flops_mean / candidate.forward_max.flops;
}

std::string schedule_text(const ScheduleOptions& schedule) {
  const std::string kind = to_string(schedule.kind);
  return schedule.inner > 0 ? fmt::format("{} inner {}", kind, schedule.inner) : kind;
}

std::string rows_text(const Problem& problem, const std::vector<Row>& rows) {
  const bool times = rows.front().machine.has_value();
  std::vector<std::string> header{"ranks",    "schedule", "shard",    "FLOP",     "balance",
                                  "received", "exposed",  "messages", "workspace"};
  if (problem.grad) header.insert(header.begin() + 2, "backward");
  if (times) header.emplace_back("ms");
  Table table(header, problem.grad ? 4 : 3);
  for (const Row& row : rows) {
    const Cost &f = row.candidate.forward_max, &b = row.candidate.backward_max;
    std::vector<std::string> cells{fmt::format("{}", row.ranks),
                                   schedule_text(row.candidate.schedule),
                                   to_string(row.candidate.shard),
                                   flops_text(f.flops + b.flops),
                                   fmt::format("{:.0f} %", 100 * balance(row.candidate)),
                                   bytes_text(f.bytes_received + b.bytes_received),
                                   bytes_text(f.exposed_bytes + b.exposed_bytes),
                                   grouped(f.messages + b.messages),
                                   bytes_text(std::max(f.workspace_bytes, b.workspace_bytes))};
    if (problem.grad) cells.insert(cells.begin() + 2, schedule_text(row.backward));
    if (times) cells.push_back(figure(1e3 * row.candidate.seconds));
    table.add(cells);
  }
  return table.text();
}

nlohmann::ordered_json row_json(const Problem& problem, const Row& row) {
  nlohmann::ordered_json json{{"problem", to_text(problem)},
                              {"ranks", row.ranks},
                              {"schedule", to_string(row.candidate.schedule.kind)},
                              {"inner", row.candidate.schedule.inner},
                              {"backward_schedule", to_string(row.backward.kind)},
                              {"backward_inner", row.backward.inner},
                              {"shard", to_string(row.candidate.shard)},
                              {"balance", balance(row.candidate)},
                              {"forward", to_json(row.candidate.forward_max)},
                              {"backward", nullptr},
                              {"cluster", nullptr},
                              {"ms", nullptr}};
  if (problem.grad) json["backward"] = to_json(row.candidate.backward_max);
  if (row.machine) {
    json["cluster"] = row.machine->name;
    json["ms"] = 1e3 * row.candidate.seconds;
  }
  return json;
}

}  // namespace

int plan(const Options& options) {
  const Problem problem = required_problem(options);
  const PlanOptions& flags = options.plan;
  warn_of_idle_flags(options, problem, nullptr);
  const bool any_asked = !flags.kernel.empty() || !flags.transport.empty() || flags.device || flags.inner != 0;
  if (any_asked) (void)simplest_plan(problem, options, options.ranks_or_default());
  const auto rows = all_rows(problem, options);
  std::string text =
      fmt::format("{}\nof the costliest rank, {}; tensors themselves not counted\n\n{}", to_text(problem),
                  problem.grad ? "forward and backward together" : "forward", rows_text(problem, rows));
  if (rows.front().machine) text += fmt::format("\nms are predicted for machine {}\n", rows.front().machine->name);
  if (flags.threads != 0 && (!options.cluster.empty() || !rows.front().machine)) {
    warn("--threads changes nothing here: it is for times on this machine, once calibrated");
  }
  print(options, text);
  if (!options.json.empty()) {
    std::vector<nlohmann::ordered_json> json;
    json.reserve(rows.size());
    for (const Row& row : rows) json.push_back(row_json(problem, row));
    append_json(options.json, json);
  }
  return 0;
}

}  // namespace rotunda::cli
