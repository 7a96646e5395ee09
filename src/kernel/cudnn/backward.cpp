// Backward: cuDNN's 16-bit gradients of each call, added to fp32, or left where they are where a call makes the whole
// of one. cuDNN computes delta itself, from out.
#include <algorithm>
#include <cstdint>

#include "base/fail.hpp"
#include "kernel/cudnn/passes.hpp"

namespace rotunda::cudnn {
namespace {

/// Rows one after the other, each with its heads one after the other, at an address that suits cuDNN.
bool is_packed(const TensorView& view) {
  constexpr std::uintptr_t kAddress = 16;  // bytes
  const std::int64_t row = view.heads() * view.dim();
  return view.stride[2] == view.dim() && view.stride[1] == row &&
         (view.batch() == 1 || view.stride[0] == view.rows() * row) &&
         reinterpret_cast<std::uintptr_t>(view.data) % kAddress == 0;
}

/// How the partial results of a side's calls come into a gradient: fp32, or of 16 bits where it is made here as a
/// whole.
class Sum {
 public:
  Sum(const TensorView& total, bool init, Side side, const std::vector<GroupedCall>& calls, Operations& operations)
      : total_(total), side_(side), ops_(operations) {
    const auto dense_and_apart = [&](const GroupedCall& call) {
      return call.form == CallForm::dense && !(side == Side::query ? call.shares_rows : call.shares_keys);
    };
    const bool narrow = total.dtype != DType::fp32;
    ROTUNDA_CHECK(init || !narrow);
    if (!init) return;
    const bool apart = calls.size() == 1 || std::all_of(calls.begin(), calls.end(), dense_and_apart);
    // cuDNN's scratch grows with the strides of dq, and its offsets must stay inside: packed rows only.
    direct_ = narrow && apart && is_packed(total);
    if (narrow && !apart) {  // several calls add up to it: in fp32 first
      narrow_ = total;
      total_ = ops_.scratch.take(DType::fp32, Layout::bshd, total.shape);
    }
    if (apart) {
      overwrites_ = calls.size();
      const bool gaps = direct_ && calls.front().form != CallForm::dense;
      if (gaps || !untouched_rows(calls, total.batch(), total.rows(), side).empty()) ops_.fill(total_, 0);
    } else if (covers(calls.front(), total.batch(), total.rows(), side)) {
      overwrites_ = 1;
    } else {
      ops_.fill(total_, 0);
    }
  }

  /// Where a call puts its part. Rows that cuDNN does not touch, beyond and between sequences, are zero.
  [[nodiscard]] TensorView open(const GroupedCall& call, DType dtype) {
    const TensorView place = box(total_, call, side_);
    if (direct_) return place;
    const TensorView partial = ops_.scratch.take(dtype, Layout::bshd, place.shape);
    if (call.form != CallForm::dense) ops_.zero(partial);
    return partial;
  }

  /// What open() gave is complete. Calls in order.
  void take(const TensorView& partial, const GroupedCall& call) {
    if (direct_) return;
    const TensorView to = box(total_, call, side_);
    if (taken_++ < overwrites_) {
      ops_.convert(partial, to);
    } else {
      ops_.add(partial, to);
    }
  }

  void finish() {
    if (narrow_.data != nullptr || narrow_.elements() > 0) ops_.convert(total_, narrow_);
  }

 private:
  TensorView total_, narrow_{};
  Side side_;
  Operations& ops_;
  bool direct_ = false;
  std::size_t overwrites_ = 0, taken_ = 0;  ///< the first of the partial results go where nothing is yet
};

/// One run of heads.
class Backward {
 public:
  Backward(const BackwardArgs& args, const std::vector<GroupedCall>& calls, int device, Operations& operations)
      : args_(args), calls_(calls), device_(device), ops_(operations) {}

  void run() {
    const Scratch::Frame sums_frame(ops_.scratch);
    if (calls_.empty()) {
      if (args_.init_dq) ops_.fill(args_.dq, 0);
      if (args_.init_dkv) ops_.fill(args_.dk, 0);
      if (args_.init_dkv) ops_.fill(args_.dv, 0);
      return;
    }
    Sum dq(args_.dq, args_.init_dq, Side::query, calls_, ops_);
    Sum dk(args_.dk, args_.init_dkv, Side::key, calls_, ops_);
    Sum dv(args_.dv, args_.init_dkv, Side::key, calls_, ops_);
    for (const GroupedCall& call : calls_) {
      const Scratch::Frame frame(ops_.scratch);
      const TensorView dq_part = dq.open(call, args_.q.dtype);
      const TensorView dk_part = dk.open(call, args_.q.dtype);
      const TensorView dv_part = dv.open(call, args_.q.dtype);
      {
        const Scratch::Frame statistics_frame(ops_.scratch);
        attend(call, dq_part, dk_part, dv_part);
      }
      dq.take(dq_part, call);
      dk.take(dk_part, call);
      dv.take(dv_part, call);
    }
    dq.finish();
    dk.finish();
    dv.finish();
  }

 private:
  /// cuDNN reads statistics dense: [batch, head, row], or [row, head] for ragged calls. Rows between sequences are
  /// padding, whose LSE is -inf; a tile that reaches over the end of a sequence must not make NaN of that.
  TensorView statistics(const GroupedCall& call) {
    const TensorView lse = box(args_.lse, call, Side::query);
    const bool ragged = call.form == CallForm::ragged;
    if (!ragged && is_packed_statistics(lse)) return lse;
    const TensorView copy = ops_.scratch.take(DType::fp32, ragged ? Layout::bshd : Layout::bhsd, lse.shape);
    ops_.copy(lse, copy);
    if (ragged) ops_.clear_infinities(copy);
    return copy;
  }

  /// In ragged calls dq is summed where the offsets of q say: both must lie alike, so q is packed too.
  TensorView queries(const GroupedCall& call) {
    const TensorView q = box(args_.q, call, Side::query);
    if (call.form != CallForm::ragged || is_packed(q)) return q;
    const TensorView copy = ops_.scratch.take(q.dtype, Layout::bshd, q.shape);
    ops_.copy(q, copy);
    return copy;
  }

  void attend(const GroupedCall& call, const TensorView& dq, const TensorView& dk, const TensorView& dv) {
    GraphCall graph(call, true, args_.q.dtype, device_);
    graph.key.scale = args_.scale;
    graph.key.deterministic = args_.deterministic;
    graph.set(Operand::q, queries(call));
    graph.set(Operand::k, box(args_.k, call, Side::key));
    graph.set(Operand::v, box(args_.v, call, Side::key));
    graph.set(Operand::out, box(args_.out, call, Side::query));
    graph.set(Operand::dout, box(args_.dout, call, Side::query));
    graph.set(Operand::lse, statistics(call));
    graph.set(Operand::dq, dq);
    graph.set(Operand::dk, dk);
    graph.set(Operand::dv, dv);
    ops_.attend(graph);
  }

  const BackwardArgs& args_;
  const std::vector<GroupedCall>& calls_;
  int device_;
  Operations& ops_;
};

}  // namespace

void backward(const BackwardArgs& args, const std::vector<GroupedCall>& calls, int device, Operations& operations) {
  const std::vector<GroupedCall> list = served(calls, true);
  const std::vector<HeadRun> runs = head_runs(args.heads, static_cast<int>(args.q.heads()));
  BackwardArgs part = args;
  std::int64_t kv_heads = 0;
  for (const HeadRun& run : runs) kv_heads += run.kv_heads;
  if (kv_heads < args.k.heads() && args.init_dkv) {  // KV heads that no query head reads
    operations.fill(args.dk, 0);
    operations.fill(args.dv, 0);
    part.init_dkv = false;
  }
  for (const HeadRun& run : runs) {
    part.q = args.q.narrow_heads(run.q_begin, run.q_heads);
    part.out = args.out.narrow_heads(run.q_begin, run.q_heads);
    part.dout = args.dout.narrow_heads(run.q_begin, run.q_heads);
    part.lse = args.lse.narrow_heads(run.q_begin, run.q_heads);
    part.dq = args.dq.narrow_heads(run.q_begin, run.q_heads);
    part.k = args.k.narrow_heads(run.kv_begin, run.kv_heads);
    part.v = args.v.narrow_heads(run.kv_begin, run.kv_heads);
    part.dk = args.dk.narrow_heads(run.kv_begin, run.kv_heads);
    part.dv = args.dv.narrow_heads(run.kv_begin, run.kv_heads);
    Backward(part, list, device, operations).run();
  }
}

}  // namespace rotunda::cudnn
