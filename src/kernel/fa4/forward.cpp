// Forward: launches whose pieces share no query row, each begins or resumes the state.
#include <algorithm>
#include <array>
#include <optional>

#include "base/fail.hpp"
#include "kernel/fa4/device_passes.hpp"
#include "kernel/fa4/passes.hpp"
#include "kernel/fa4/workspace.hpp"

namespace rotunda::fa4 {
namespace {

Tensor4 tensor4(const TensorView& v) {
  const auto extent = [&](std::size_t axis) { return static_cast<std::int32_t>(v.shape[axis]); };
  return {v.data, {extent(0), extent(1), extent(2), extent(3)}, {v.stride[0], v.stride[1], v.stride[2]}};
}

/// [batch, row, head, 1] as [batch, head, row].
Statistics statistics(const TensorView& v) {
  const auto extent = [&](std::size_t axis) { return static_cast<std::int32_t>(v.shape[axis]); };
  return {v.data, {extent(0), extent(2), extent(1)}, {v.stride[0], v.stride[2], v.stride[1]}};
}

/// One call of one fold.
class Forward {
 public:
  Forward(const Exported& kernel, const ForwardArgs& args, const Folds& folds, const KernelContext& context)
      : kernel_(kernel),
        args_(args),
        folds_(folds),
        stream_(context.stream),
        plan_(kernel, args.slices, extents_of(args), static_cast<int>(args.v.dim()), args.init, args.last),
        workspace_(context, plan_.layout) {}

  void run() {
    place_state();
    for (std::size_t i = 0; i < plan_.launches.size(); ++i) launch(i);
  }

 private:
  void place_state() {
    const TensorView& q = args_.q;
    const auto dense = [&](std::int64_t at, std::int64_t dim) {
      return make_view(workspace_.at<std::byte>(at), DType::fp32, Layout::bhsd, q.batch(), q.rows(), q.heads(), dim);
    };
    acc_ = plan_.own_acc || args_.acc.data == nullptr ? dense(plan_.acc, args_.v.dim()) : args_.acc;
    low_ = args_.lse_low;
    if (low_.data != nullptr) return;
    low_ = dense(plan_.low, 1);
    if (!args_.init) workspace_.zero(plan_.low, low_.elements() * static_cast<std::int64_t>(sizeof(float)), stream_);
  }

  void launch(std::size_t index) {
    const bool first = index == 0, last = index + 1 == plan_.launches.size();
    LaunchFrame frame{folds_.q, folds_.k, args_.heads, 0, Side::query, kernel_.tile_q};
    if (!(first && args_.init)) frame.flags |= kResumes;
    if (!(last && args_.last)) frame.flags |= kLeavesState;
    const Exported* twin = twin_for_one(kernel_);
    std::optional<OneSlice> one;
    if (twin != nullptr) one = as_one_slice(plan_.launches[index], frame, args_.q.batch());
    const std::int64_t end_q = one ? one->q_row + one->rows_q : 0, end_k = one ? one->k_row + one->rows_k : 0;
    const bool gives_out = (frame.flags & kLeavesState) == 0;
    ForwardCall call{
        .q = folds_.queries(args_.q, end_q, workspace_),
        .k = folds_.keys(args_.k, end_k, workspace_),
        .v = folds_.keys(args_.v, end_k, workspace_),
        .out = gives_out ? folds_.queries(args_.out, end_q, workspace_) : workspace_.nothing(args_.v.dim()),
        .acc = tensor4(acc_),
        .lse = statistics(args_.lse),
        .low = statistics(low_),
        .scale = static_cast<float>(args_.scale),
        .tables = {},
        .one = one.value_or(OneSlice{}),
    };
    auto* const at = workspace_.at<std::int32_t>(plan_.tables[index]);
    call.tables.first_q = {at, {1}};
    if (one) return fa4::launch(*twin, call, stream_);
    const Tables tables = make_tables(plan_.launches[index], frame);
    write(tables, at, stream_);
    call.tables = tables.at(at);
    fa4::launch(kernel_, call, stream_);
  }

  const Exported& kernel_;
  const ForwardArgs& args_;
  const Folds& folds_;
  Stream stream_;
  ForwardPlan plan_;
  Workspace workspace_;
  TensorView acc_, low_;
};

}  // namespace

ForwardPlan::ForwardPlan(const Exported& kernel, std::span<const Slice> slices, const CallExtents& extents, int d_v,
                         bool init, bool last)
    : launches(forward_launches(slices, extents.batch, extents.rows_q, init, last)) {
  constexpr std::int64_t kFloat = sizeof(float);
  const std::int64_t rows = extents.batch * extents.rows_q * extents.heads_q;
  own_acc = init && last && launches.size() > 1;
  const bool has_state = !init || !last || own_acc;
  if (own_acc) acc = layout.take(rows * d_v * kFloat);
  if (has_state) low = layout.take(rows * kFloat);
  for (const Launch& one : launches) tables.push_back(layout.take(table_bytes(one, Side::query, kernel.tile_q)));
}

ForwardArgs entry_of(const ForwardArgs& args, std::int64_t batch) {
  ForwardArgs part = args;
  for (TensorView* view : {&part.q, &part.k, &part.v, &part.acc, &part.lse, &part.out, &part.lse_low}) {
    *view = entry(*view, batch);
  }
  return part;
}

void forward(const Exported& kernel, const ForwardArgs& args, const KernelContext& context) {
  if (args.q.batch() * args.q.rows() * args.q.heads() == 0) return;
  std::vector<TensorView> queries{args.q};
  if (args.last) queries.push_back(args.out);
  for_each_fold(args, queries, std::array{args.k, args.v},
                [&](const ForwardArgs& part, const Folds& folds) { Forward(kernel, part, folds, context).run(); });
}

}  // namespace rotunda::fa4
