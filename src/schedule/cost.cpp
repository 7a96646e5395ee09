#include <algorithm>
#include <set>

#include "rotunda/schedule.hpp"

namespace rotunda {
namespace {

std::int64_t bytes(const Program& program, const Region& region) {
  const Buffer& buffer = program.buffers[static_cast<std::size_t>(region.buffer)];
  return buffer.batch * region.rows * region.heads * buffer.dim * static_cast<std::int64_t>(size_of(buffer.dtype));
}

std::int64_t bytes(const Program& program, const std::vector<Transfer>& transfers) {
  std::int64_t sum = 0;
  for (const Transfer& transfer : transfers) sum += bytes(program, transfer.region);
  return sum;
}

/// What a step reads and writes beside attention's own tensors.
class MemoryBytes {
 public:
  explicit MemoryBytes(const Program& program) : program_(program) {}

  std::int64_t operator()(const Fill& s) const { return of(s.to); }
  std::int64_t operator()(const Convert& s) const { return of(s.from) + of(s.to); }
  std::int64_t operator()(const Add& s) const { return of(s.from) + 2 * (of(s.to) + of(s.low)); }
  std::int64_t operator()(const Delta& s) const { return of(s.out) + of(s.dout); }
  std::int64_t operator()(const Finish& s) const { return of(s.acc) + of(s.out); }
  std::int64_t operator()(const Attend& s) const { return (s.init ? 0 : of(s.acc)) + (s.last ? 0 : of(s.acc)); }
  std::int64_t operator()(const AttendBackward& s) const {
    return sum(s.dq, s.init_dq) + sum(s.dk, s.init_dkv) + sum(s.dv, s.init_dkv);
  }
  std::int64_t operator()(const auto&) const { return 0; }

 private:
  std::int64_t of(const Region& region) const { return region ? bytes(program_, region) : 0; }
  std::int64_t sum(const Region& region, bool init) const { return of(region) * (init ? 1 : 2); }
  const Program& program_;
};

}  // namespace

Cost cost(const Problem& problem, const Program& program) {
  Cost result;
  std::set<int> in_flight;
  const auto count_call = [&](const std::vector<Slice>& slices, std::int64_t heads) {
    const double seen = count_pairs(slices) * static_cast<double>(heads);
    result.pairs += seen;
    ++result.calls;
    if (seen > 0) in_flight.clear();  // what is on its way now has something to hide behind
  };
  for (const Step& step : program.steps) {
    result.memory_bytes += std::visit(MemoryBytes(program), step);
    if (const auto* post = std::get_if<Post>(&step)) {
      const Exchange& exchange = program.exchanges[static_cast<std::size_t>(post->exchange)];
      result.bytes_sent += bytes(program, exchange.sends);
      result.bytes_received += bytes(program, exchange.receives);
      result.messages += static_cast<std::int64_t>(exchange.receives.size());
      in_flight.insert(post->exchange);
    } else if (const auto* await = std::get_if<Await>(&step)) {
      const auto& receives = program.exchanges[static_cast<std::size_t>(await->exchange)].receives;
      if (in_flight.erase(await->exchange) == 0) continue;
      result.exposed_bytes += bytes(program, receives);
      result.exposed_messages += static_cast<std::int64_t>(receives.size());
    } else if (const auto* attend = std::get_if<Attend>(&step)) {
      count_call(attend->slices, attend->q.heads);
    } else if (const auto* backward = std::get_if<AttendBackward>(&step)) {
      count_call(backward->slices, backward->q.heads);
    }
  }
  const double flops_per_pair = 2.0 * (problem.d + problem.d_v) * (program.backward ? 2.5 : 1.0);
  result.flops = flops_per_pair * result.pairs;
  result.workspace_bytes = program.workspace_bytes;
  return result;
}

}  // namespace rotunda
