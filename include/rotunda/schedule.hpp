// Schedules: the steps that each rank performs, as data. Host only: no tensors, no network, no device.
//
// A Program is what one rank does in one direction. It names buffers (the user's tensors and planned workspace), posts
// exchanges, and attends over slices given in buffer rows. docs/algorithms.md explains the patterns in prose.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "rotunda/problem.hpp"
#include "rotunda/shard.hpp"

namespace rotunda {

enum class ScheduleKind { p2p, all_gather, a2a, a2a_p2p };
inline constexpr std::array kScheduleKinds{ScheduleKind::p2p, ScheduleKind::all_gather, ScheduleKind::a2a,
                                           ScheduleKind::a2a_p2p};

[[nodiscard]] const char* to_string(ScheduleKind kind) noexcept;
/// @throws Error bad_input listing the allowed names
[[nodiscard]] ScheduleKind parse_schedule_kind(std::string_view name);

/// What a buffer is bound to. Everything but workspace is the user's.
enum class Binding {
  q,
  k,
  v,
  sink,
  out,
  lse,
  max_logit,
  dout,
  dq,
  dk,
  dv,
  dsink,
  workspace,
};

[[nodiscard]] const char* to_string(Binding binding) noexcept;

/// A buffer of a program: [batch, rows, heads, dim]. Workspace lies dense, in `layout`'s order, at `offset` bytes of
/// one allocation.
struct Buffer {
  std::string name;
  Binding binding = Binding::workspace;
  DType dtype = DType::fp32;
  std::int64_t batch = 0, rows = 0, heads = 0, dim = 0;
  std::int64_t offset = 0;
  Layout layout = Layout::bshd;  ///< row statistics: bhsd, as in files, so that rows lie together

  [[nodiscard]] std::int64_t elements() const { return batch * rows * heads * dim; }
  [[nodiscard]] std::int64_t bytes() const { return elements() * static_cast<std::int64_t>(size_of(dtype)); }
};

/// Rows [row, row + rows) and heads [head, head + heads) of a buffer, all batch entries and dims.
struct Region {
  int buffer = -1;  ///< index in Program::buffers; -1: none
  std::int64_t row = 0, rows = 0;
  std::int64_t head = 0, heads = 0;
  std::int64_t packed_heads = 0;  ///< of workspace: it lies as if it had this many heads and no more; 0: as it is

  [[nodiscard]] explicit operator bool() const { return buffer >= 0; }
  bool operator==(const Region&) const = default;
};

/// A message of an exchange. The sends of one rank to another and that one's receives from it are in the same order.
struct Transfer {
  int peer = 0;
  Region region;
};

/// One round of messages. The same id on every rank that takes part; ids ascend in posting order.
struct Exchange {
  int id = 0;
  std::string label;  ///< such as "inputs of item 3", for traces and `explain`
  std::vector<Transfer> sends, receives;
};

// Steps. A program performs them in order; an exchange runs beside what stands between its post and its await.

/// Starts exchange `exchange` (index in Program::exchanges): its sends' regions are ready, its receives' free.
struct Post {
  int exchange;
};
/// What the exchange receives has arrived.
struct Await {
  int exchange;
};
/// What the exchange sends has left: its regions may be overwritten.
struct AwaitSent {
  int exchange;
};
/// to = value.
struct Fill {
  Region to;
  double value;
};
/// to = from, converted to to's dtype.
struct Convert {
  Region from, to;
};
/// to += from (fp32). low (may be none) += what the rounding of that sum lost.
struct Add {
  Region from, to, low;
};
/// lse of real rows = sink: rows that see nothing (yet) of a problem with a sink.
struct FillSink {
  Region lse;
  std::vector<RowSpan> rows;
};
/// delta = rowsum(dout ∘ out), fp32.
struct Delta {
  Region out, dout, delta;
};
/// out = acc (with a sink: of `rows`, lse' = log(exp(lse) + exp(sink)), out = acc·exp(lse - lse'), lse = lse').
/// `head` is the global number of the region's first query head.
struct Finish {
  Region acc, lse, lse_low, out;
  std::int64_t head;
  std::vector<RowSpan> rows;
};
/// dsink[h] = -Σ over `rows` of exp(sink[h] - lse)·delta.
struct SinkGradient {
  Region lse, delta;
  std::vector<RowSpan> rows;
};
/// to[0] = max over rows of from, by head.
struct RowMax {
  Region from, to;
};
/// Attention over slices, added to a running (acc, lse + lse_low). init: the running state is empty (and acc, lse hold
/// anything); last: the result goes to `out`, not to acc. q_head, kv_head: global numbers of the regions' first heads.
struct Attend {
  Region q, k, v, acc, lse, lse_low, out, max_logit;
  int q_head = 0, kv_head = 0;
  bool init = true, last = true;
  std::vector<Slice> slices;  ///< in rows of the regions
};
/// Gradients over slices, fp32 buffers, or with narrow_gradients of the problem's dtype where this step makes all of
/// them. init_dq, init_dkv: the buffers hold anything and are overwritten, else added to.
struct AttendBackward {
  Region q, k, v, dout, lse, delta, dq, dk, dv;
  Region out;  ///< with ScheduleOptions::sends_out, in delta's place
  int q_head = 0, kv_head = 0;
  bool init_dq = true, init_dkv = true;
  std::vector<Slice> slices;  ///< in rows of the regions
};

using Step = std::variant<Post, Await, AwaitSent, Fill, Convert, Add, FillSink, Delta, Finish, SinkGradient, RowMax,
                          Attend, AttendBackward>;

/// What one rank does in one direction, forward or backward.
struct Program {
  int rank = 0, ranks = 1;
  bool backward = false;
  std::vector<Buffer> buffers;
  std::vector<Exchange> exchanges;
  std::vector<Step> steps;
  std::int64_t workspace_bytes = 0;  ///< planned buffers; a kernel's own scratch comes on top

  /// The buffer that a region is in.
  [[nodiscard]] const Buffer& buffer(const Region& region) const {
    return buffers[static_cast<std::size_t>(region.buffer)];
  }
  /// The exchange that a step means.
  [[nodiscard]] const Exchange& exchange(int index) const { return exchanges[static_cast<std::size_t>(index)]; }
  [[nodiscard]] std::int64_t bytes(const Region& region) const {
    const Buffer& b = buffer(region);
    return b.batch * region.rows * region.heads * b.dim * static_cast<std::int64_t>(size_of(b.dtype));
  }
};

/// FLOPs of backward ÷ those of forward: five products a pair for two.
inline constexpr double kBackwardFlops = 2.5;
/// FLOPs of a visible (row, key) pair of one query head, forward.
[[nodiscard]] inline double flops_per_pair(const Problem& problem) {
  return 2.0 * (problem.d + problem.d_v);
}

/// What a program costs, counted from its steps.
struct Cost {
  double pairs = 0;  ///< visible (row, key) pairs, summed over the query heads computed
  double flops = 0;  ///< flops_per_pair, backward times kBackwardFlops
  std::int64_t bytes_sent = 0, bytes_received = 0;
  std::int64_t messages = 0;       ///< received
  std::int64_t exposed_bytes = 0;  ///< received with no attention between post and await
  std::int64_t exposed_messages = 0;
  std::int64_t calls = 0;         ///< of a kernel
  std::int64_t memory_bytes = 0;  ///< read and written beside attention: sums, conversions, fp32 state between calls
  std::int64_t workspace_bytes = 0;
};

struct ScheduleOptions {
  ScheduleKind kind = ScheduleKind::p2p;
  int inner = 0;                  ///< a2a_p2p: ranks of an a2a group, a divisor of ranks; 0 chooses
  int head_groups = 0;            ///< all_gather, a2a: groups of KV heads that travel one after the other; 0 chooses
  bool narrow_gradients = false;  ///< backward: a call that makes a whole gradient writes it in the problem's dtype
  bool sends_out = false;         ///< backward: out travels with the queries, for kernels that compute delta themselves

  bool operator==(const ScheduleOptions&) const = default;
};

/// The program of one rank. @throws Error bad_input (inner does not divide ranks, …)
[[nodiscard]] Program make_program(const Problem& problem, const Shard& shard, const ScheduleOptions& options, int rank,
                                   bool backward);

/// Ranks of an a2a group that `options` mean for this many ranks: p2p and all_gather 1, a2a all, a2a_p2p inner.
[[nodiscard]] int inner_ranks(const Problem& problem, const ScheduleOptions& options, int ranks);

[[nodiscard]] Cost cost(const Problem& problem, const Program& program);

/// The program as numbered lines, one a step.
[[nodiscard]] std::string to_text(const Program& program);

}  // namespace rotunda
