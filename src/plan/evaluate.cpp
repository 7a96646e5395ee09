// Candidates: a schedule on a shard, counted over all ranks and timed by a simple model.
#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "plan/selection.hpp"
#include "rotunda/plan.hpp"

namespace rotunda {
namespace {

/// The larger of each field.
void raise(Cost& to, const Cost& from) {
  to.pairs = std::max(to.pairs, from.pairs);
  to.flops = std::max(to.flops, from.flops);
  to.bytes_sent = std::max(to.bytes_sent, from.bytes_sent);
  to.bytes_received = std::max(to.bytes_received, from.bytes_received);
  to.messages = std::max(to.messages, from.messages);
  to.exposed_bytes = std::max(to.exposed_bytes, from.exposed_bytes);
  to.exposed_messages = std::max(to.exposed_messages, from.exposed_messages);
  to.calls = std::max(to.calls, from.calls);
  to.memory_bytes = std::max(to.memory_bytes, from.memory_bytes);
  to.workspace_bytes = std::max(to.workspace_bytes, from.workspace_bytes);
}

/// Of larger groups, about this many ranks stand for all: each looks at all others, so all would be quadratic.
constexpr int kRanksCounted = 64;

/// A rank's seconds. Where copies run beside attention, what is not exposed costs only what attention can't hide.
double seconds_of(const Cost& cost, const Machine& machine) {
  const double compute = cost.flops / machine.flops_per_second;
  const auto exposed = static_cast<double>(machine.overlaps ? cost.exposed_bytes : cost.bytes_received);
  const double hidden = static_cast<double>(cost.bytes_received) - exposed;
  const double excess = std::max(0.0, hidden / machine.bytes_per_second - compute);
  const auto messages = static_cast<double>(machine.overlaps ? cost.exposed_messages : cost.messages);
  return compute + exposed / machine.bytes_per_second + excess + messages * machine.seconds_per_message +
         static_cast<double>(cost.calls) * machine.seconds_per_call +
         static_cast<double>(cost.memory_bytes) / machine.memory_bytes_per_second;
}

}  // namespace

int partials(const Program& program) {
  std::map<std::pair<int, std::int64_t>, int> calls;                // by first query head and row
  std::map<std::tuple<int, std::int64_t, std::int64_t>, int> sums;  // by buffer, first row and first head
  for (const Step& step : program.steps) {
    if (const auto* attend = std::get_if<Attend>(&step)) ++calls[{attend->q_head, attend->q.row}];
    if (const auto* attend = std::get_if<AttendBackward>(&step)) ++calls[{attend->q_head, attend->q.row}];
    if (const auto* add = std::get_if<Add>(&step)) ++sums[{add->to.buffer, add->to.row, add->to.head}];
  }
  int most = 1;
  for (const auto& [rows, count] : calls) most = std::max(most, count);
  for (const auto& [place, count] : sums) most = std::max(most, count);
  return most;
}

void DirectionCost::add(const Problem& problem, const Program& program, const Machine& machine) {
  const Cost there = cost(problem, program);
  partials = std::max(partials, rotunda::partials(program));
  raise(most, there);
  seconds.push_back(seconds_of(there, machine));
  flops_mean += (there.flops - flops_mean) / static_cast<double>(seconds.size());
}

bool is_counted(int rank, int ranks) {
  // One of each stretch, a place further on in each: of few heads every 32nd rank may have one, say, and always the
  // same place would miss them.
  const int stretch = (ranks + kRanksCounted - 1) / kRanksCounted;
  return rank % stretch == rank / stretch % stretch;
}

DirectionCost evaluate_direction(const Problem& problem, const Shard& shard, const ScheduleOptions& options,
                                 const Machine& machine, bool backward) {
  DirectionCost result;
  for (int rank = 0; rank < shard.q.ranks(); ++rank) {
    if (!is_counted(rank, shard.q.ranks())) continue;
    result.add(problem, make_program(problem, shard, options, rank, backward), machine);
  }
  return result;
}

Candidate combine(const Shard& shard, const ScheduleOptions& options, const DirectionCost& forward,
                  const DirectionCost* backward) {
  Candidate result{options, shard.kind, forward.most, {}, forward.flops_mean, forward.partials, 0};
  if (backward != nullptr) {
    result.backward_max = backward->most;
    result.partials = std::max(result.partials, backward->partials);
  }
  for (std::size_t i = 0; i < forward.seconds.size(); ++i) {
    const double both = forward.seconds[i] + (backward != nullptr ? backward->seconds[i] : 0);
    result.seconds = std::max(result.seconds, both);
  }
  return result;
}

Candidate evaluate(const Problem& problem, const Shard& shard, const ScheduleOptions& forward,
                   const ScheduleOptions& backward, const Machine& machine) {
  const DirectionCost there = evaluate_direction(problem, shard, forward, machine, false);
  if (!problem.grad) return combine(shard, forward, there, nullptr);
  const DirectionCost back = evaluate_direction(problem, shard, backward, machine, true);
  return combine(shard, forward, there, &back);
}

}  // namespace rotunda
