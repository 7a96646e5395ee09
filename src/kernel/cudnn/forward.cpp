// Forward: straight into `out` where no row is in two calls, else 16-bit partial results merged into the fp32 state.
#include <algorithm>
#include <limits>

#include "kernel/cudnn/passes.hpp"

namespace rotunda::cudnn {
namespace {

constexpr float kNothing = -std::numeric_limits<float>::infinity();
// Filling a few spans of rows costs less than filling all of them.
constexpr std::size_t kFewGaps = 4;

TensorView rows_of(const TensorView& view, const RowSpan& span) {
  return view.narrow_batch(span.batch, 1).narrow_rows(span.begin, span.len);
}

/// One run of heads.
class Forward {
 public:
  Forward(const ForwardArgs& args, const std::vector<GroupedCall>& calls, int device, Operations& operations)
      : args_(args), calls_(calls), device_(device), ops_(operations) {
    gaps_ = untouched_rows(calls, args.q.batch(), args.q.rows(), Side::query);
  }

  void run() {
    if (args_.q.rows() == 0 || args_.q.batch() == 0) return;
    const auto shares = [](const GroupedCall& call) { return call.shares_rows; };
    const bool apart = std::none_of(calls_.begin(), calls_.end(), shares);
    if (args_.init && args_.last && apart) {
      write_directly();
    } else {
      merge_partials();
    }
  }

 private:
  void attend(const GroupedCall& call, const TensorView& out, const TensorView& lse) {
    GraphCall graph(call, false, args_.q.dtype, device_);
    graph.key.scale = args_.scale;
    graph.set(Operand::q, box(args_.q, call, Side::query));
    graph.set(Operand::k, box(args_.k, call, Side::key));
    graph.set(Operand::v, box(args_.v, call, Side::key));
    graph.set(Operand::out, out);
    graph.set(Operand::lse, lse);
    ops_.attend(graph);
  }

  /// Statistics in the order that cuDNN writes for a call's form.
  TensorView take_statistics(const GroupedCall& call, const std::array<std::int64_t, 4>& shape) {
    return ops_.scratch.take(DType::fp32, call.form == CallForm::ragged ? Layout::bshd : Layout::bhsd, shape);
  }

  void write_directly() {
    if (!gaps_.empty()) {
      ops_.fill(args_.out, 0);
      ops_.fill(args_.lse, kNothing);
    }
    const auto ragged = [](const GroupedCall& call) { return call.form == CallForm::ragged; };
    if (std::any_of(calls_.begin(), calls_.end(), ragged)) write_ragged();
    for (const GroupedCall& call : calls_) {
      if (call.form == CallForm::ragged) continue;
      const Scratch::Frame frame(ops_.scratch);
      const TensorView out = box(args_.out, call, Side::query), lse = box(args_.lse, call, Side::query);
      if (is_packed_statistics(lse)) {
        attend(call, out, lse);
        continue;
      }
      const TensorView statistics = take_statistics(call, lse.shape);
      attend(call, out, statistics);
      ops_.copy(statistics, lse);
    }
  }

  /// Statistics of all ragged calls go to one buffer of all rows, and are copied from there: their rows may interleave.
  void write_ragged() {
    const Scratch::Frame frame(ops_.scratch);
    const TensorView statistics = ops_.scratch.take(DType::fp32, Layout::bshd, args_.lse.shape);
    ops_.fill(statistics, kNothing);
    for (const GroupedCall& call : calls_) {
      if (call.form != CallForm::ragged) continue;
      attend(call, box(args_.out, call, Side::query), box(statistics, call, Side::query));
    }
    ops_.copy(statistics, args_.lse);
  }

  [[nodiscard]] RowState state_of(const GroupedCall& call) const {
    RowState state{box(state_.acc, call, Side::query), box(state_.lse, call, Side::query), {}};
    if (state_.lse_low.data != nullptr) state.lse_low = box(state_.lse_low, call, Side::query);
    return state;
  }

  void empty_state(const TensorView& acc, const TensorView& lse, const TensorView& low) {
    ops_.fill(acc, 0);
    ops_.fill(lse, kNothing);
    if (low.data != nullptr) ops_.fill(low, 0);
  }

  void merge_partials() {
    const bool one = calls_.size() == 1 && calls_.front().form == CallForm::dense && gaps_.size() <= kFewGaps;
    const auto whole = [&](const GroupedCall& call) {
      return one || covers(call, args_.q.batch(), args_.q.rows(), Side::query);
    };
    const bool first_inits = args_.init && !calls_.empty() && whole(calls_.front());
    const bool last_writes = args_.last && !calls_.empty() && whole(calls_.back());
    const Scratch::Frame frame(ops_.scratch);
    state_ = {args_.acc, args_.lse, args_.lse_low};
    if (args_.init && args_.last) state_.acc = ops_.scratch.take(DType::fp32, Layout::bshd, args_.out.shape);
    if (args_.init && !first_inits) empty_state(state_.acc, state_.lse, state_.lse_low);
    for (const GroupedCall& call : calls_) {
      const bool init = first_inits && &call == &calls_.front(), last = last_writes && &call == &calls_.back();
      add_partial(call, init, last);
    }
    if (one) {
      for (const RowSpan& gap : gaps_) finish_gap(gap, first_inits, last_writes);
    }
    if (args_.last && !last_writes) ops_.convert(state_.acc, args_.out);
  }

  void add_partial(const GroupedCall& call, bool init, bool last) {
    const Scratch::Frame frame(ops_.scratch);
    const TensorView rows = box(args_.q, call, Side::query);
    const std::int64_t heads = args_.q.heads();
    const TensorView out =
        ops_.scratch.take(args_.q.dtype, Layout::bshd, {rows.batch(), rows.rows(), heads, args_.v.dim()});
    const TensorView lse = take_statistics(call, {rows.batch(), rows.rows(), heads, 1});
    if (call.form != CallForm::dense) ops_.fill(lse, kNothing);  // merge reads no `out` there
    attend(call, out, lse);
    ops_.merge(out, lse, state_of(call), last ? box(args_.out, call, Side::query) : TensorView{}, init, last);
  }

  /// Rows that a single call, which began or ended the state of its own rows, left alone.
  void finish_gap(const RowSpan& gap, bool begin, bool end) {
    const auto low = state_.lse_low.data == nullptr ? TensorView{} : rows_of(state_.lse_low, gap);
    if (begin) empty_state(rows_of(state_.acc, gap), rows_of(state_.lse, gap), low);
    if (end) ops_.convert(rows_of(state_.acc, gap), rows_of(args_.out, gap));
  }

  const ForwardArgs& args_;
  const std::vector<GroupedCall>& calls_;
  int device_;
  Operations& ops_;
  std::vector<RowSpan> gaps_;
  RowState state_;
};

}  // namespace

void forward(const ForwardArgs& args, const std::vector<GroupedCall>& calls, int device, Operations& operations) {
  const std::vector<GroupedCall> list = served(calls, false);
  for (const HeadRun& run : head_runs(args.heads, static_cast<int>(args.q.heads()))) {
    ForwardArgs part = args;
    for (TensorView* view : {&part.q, &part.acc, &part.lse, &part.out, &part.lse_low}) {
      *view = view->narrow_heads(run.q_begin, run.q_heads);
    }
    part.k = args.k.narrow_heads(run.kv_begin, run.kv_heads);
    part.v = args.v.narrow_heads(run.kv_begin, run.kv_heads);
    Forward(part, list, device, operations).run();
  }
}

}  // namespace rotunda::cudnn
