// Backward: statistics are gathered in the order of sums, sums zeroed, added to by the launches, and placed.
#include <algorithm>
#include <array>

#include "kernel/fa4/device_passes.hpp"
#include "kernel/fa4/passes.hpp"
#include "kernel/fa4/workspace.hpp"

namespace rotunda::fa4 {
namespace {

constexpr std::int64_t kFloat = sizeof(float);

/// Rows of no segment, with sums after `next` that nobody makes.
std::vector<Segment> gaps(const SumRows& sums, std::int64_t batches, std::int64_t rows, int tile, std::int64_t& next) {
  std::vector<Segment> result;
  auto at = sums.segments.begin();
  for (std::int64_t batch = 0; batch < batches; ++batch) {
    std::int64_t done = 0;
    const auto add_until = [&](std::int64_t end) {
      if (end <= done) return;
      result.push_back({batch, done, end - done, next});
      next += (end - done + tile - 1) / tile * tile;
    };
    for (; at != sums.segments.end() && at->batch == batch; ++at) {
      add_until(at->begin);
      done = at->begin + at->len;
    }
    add_until(rows);
  }
  return result;
}

std::vector<Segment> with(std::vector<Segment> segments, const std::vector<Segment>& more) {
  segments.insert(segments.end(), more.begin(), more.end());
  return segments;
}

std::int64_t segment_bytes(const SumRows& sums, const std::vector<Segment>& gaps) {
  return static_cast<std::int64_t>((4 * (sums.segments.size() + gaps.size()) + 1) * sizeof(std::int32_t));
}

/// The most tiles that a piece of a launch has on a side.
std::int64_t most_tiles(const std::vector<Launch>& launches, Side side, int tile) {
  std::int64_t most = 0;
  for (const Launch& launch : launches) {
    for (const Piece& piece : launch) most = std::max(most, tiles_of(piece, side, tile));
  }
  return most;
}

std::int64_t most_pieces(const std::vector<Launch>& launches) {
  std::size_t most = 0;
  for (const Launch& launch : launches) most = std::max(most, launch.size());
  return static_cast<std::int64_t>(most);
}

/// One call of one fold.
class Backward {
 public:
  Backward(const BackwardKernels& kernels, const BackwardArgs& args, const Folds& folds, const KernelContext& context)
      : args_(args),
        folds_(folds),
        stream_(context.stream),
        plan_(kernels, args.slices, extents_of(args), args.init_dq, args.init_dkv),
        kernel_(*plan_.kernel),
        workspace_(context, plan_.layout) {}

  // The exported kernel may begin while the one before it ends (programmatic launch) and waits for that one alone
  // before it reads statistics. So they come last, when all else is in memory.
  void run() {
    const auto& q = plan_.work.q;
    const auto& k = plan_.work.k;
    write(segment_table(with(q.segments, plan_.gaps_q), plan_.rows_q), at<std::int32_t>(plan_.segments_q), stream_);
    if (!plan_.is_direct()) {
      write(segment_table(with(k.segments, plan_.gaps_k), plan_.rows_k), at<std::int32_t>(plan_.segments_k), stream_);
    }
    std::vector<Prepared> launches;
    for (std::size_t i = 0; i < plan_.work.launches.size(); ++i) launches.push_back(prepare(i));
    workspace_.zero(plan_.dq, plan_.end - plan_.dq, stream_);
    for (const Prepared& one : launches) {
      if (is_ordered()) workspace_.zero(plan_.turns_q, plan_.turns_end - plan_.turns_q, stream_);
      gather_statistics(args_.lse, args_.delta, segments_q(q.rows), at<float>(plan_.lse), at<float>(plan_.delta),
                        stream_);
      launch(one);
    }
    place();
  }

 private:
  template <class T>
  [[nodiscard]] T* at(std::int64_t offset) const {
    return workspace_.at<T>(offset);
  }
  [[nodiscard]] bool is_ordered() const { return kernel_.kind == Kind::deterministic; }
  [[nodiscard]] SegmentList segments_q(std::int64_t rows) const {
    return {at<std::int32_t>(plan_.segments_q), static_cast<int>(plan_.work.q.segments.size() + plan_.gaps_q.size()),
            rows};
  }
  [[nodiscard]] SegmentList segments_k(std::int64_t rows) const {
    return {at<std::int32_t>(plan_.segments_k), static_cast<int>(plan_.work.k.segments.size() + plan_.gaps_k.size()),
            rows};
  }

  /// A launch, whose tables are on their way to the device.
  struct Prepared {
    const Exported* kernel;
    LaunchTables tables;
    OneSlice one;
  };

  Prepared prepare(std::size_t index) const {
    const LaunchFrame frame{folds_.q, folds_.k, args_.heads, 0, Side::key, kernel_.dkv.rows};
    const Launch& pieces = plan_.work.launches[index];
    auto* const to = at<std::int32_t>(plan_.tables[index]);
    if (const Exported* twin = twin_for_one(kernel_)) {
      if (const auto one = as_one_slice(pieces, frame, args_.q.batch())) {
        Prepared result{twin, {}, *one};
        result.tables.first_q = {to, {1}};
        return result;
      }
    }
    const Tables tables = make_tables(pieces, frame);
    write(tables, to, stream_);
    return {&kernel_, tables.at(to), {}};
  }

  [[nodiscard]] Sums sums(std::int64_t offset, std::int64_t heads, std::int64_t rows, int width) const {
    const std::int64_t row = rows * width;
    return {at<void>(offset), {static_cast<std::int32_t>(heads), static_cast<std::int32_t>(row)}, {row}};
  }

  /// Counters [piece, head, tile, kind].
  [[nodiscard]] Tensor4 turns(std::int64_t offset, std::int64_t heads, std::int64_t tiles, std::int32_t kinds) const {
    return {at<void>(offset),
            {static_cast<std::int32_t>(most_pieces(plan_.work.launches)), static_cast<std::int32_t>(heads),
             static_cast<std::int32_t>(tiles), kinds},
            {heads * tiles * kinds, tiles * kinds, kinds}};
  }

  void launch(const Prepared& prepared) {
    const std::int64_t heads_q = args_.q.heads(), heads_kv = args_.k.heads();
    const std::int64_t rows_q = plan_.work.q.rows, rows_k = plan_.work.k.rows;
    const OneSlice& one = prepared.one;
    const std::int64_t end_q = one.q_row + one.rows_q, end_k = one.k_row + one.rows_k;
    BackwardCall call{
        .q = folds_.queries(args_.q, end_q, workspace_),
        .k = folds_.keys(args_.k, end_k, workspace_),
        .v = folds_.keys(args_.v, end_k, workspace_),
        .dout = folds_.queries(args_.dout, end_q, workspace_),
        .lse_log2 = sums(plan_.lse, heads_q, rows_q, 1),
        .delta = sums(plan_.delta, heads_q, rows_q, 1),
        .dq = sums(plan_.dq, heads_q, rows_q, kernel_.d),
        .dk = sums(plan_.dk, heads_kv, rows_k, kernel_.d),
        .dv = sums(plan_.dv, heads_kv, rows_k, kernel_.d_v),
        .direct_dk = folds_.keys(args_.dk, end_k, workspace_),
        .direct_dv = folds_.keys(args_.dv, end_k, workspace_),
        .scale = static_cast<float>(args_.scale),
        .tables = prepared.tables,
        .one = one,
        .turns_q = turns(plan_.turns_q, heads_q, most_tiles(plan_.work.launches, Side::query, kernel_.dq.rows), 1),
        .turns_k = turns(plan_.turns_k, heads_kv, most_tiles(plan_.work.launches, Side::key, kernel_.dkv.rows), 2),
        .turns_v = turns(plan_.turns_v, heads_kv, most_tiles(plan_.work.launches, Side::key, kernel_.dkv.rows), 2),
    };
    fa4::launch(*prepared.kernel, call, stream_);
  }

  void place() {
    const auto scale = static_cast<float>(args_.scale);
    const SegmentList q = segments_q(plan_.rows_q), k = segments_k(plan_.rows_k);
    place_sums(at<float>(plan_.dq), kernel_.dq, kernel_.d, q, plan_.work.q.rows, {args_.dq, scale, !args_.init_dq},
               stream_);
    if (plan_.is_direct()) return;
    place_sums(at<float>(plan_.dk), kernel_.dkv, kernel_.d, k, plan_.work.k.rows, {args_.dk, scale, !args_.init_dkv},
               stream_);
    place_sums(at<float>(plan_.dv), kernel_.dkv, kernel_.d_v, k, plan_.work.k.rows, {args_.dv, 1, !args_.init_dkv},
               stream_);
  }

  const BackwardArgs& args_;
  const Folds& folds_;
  Stream stream_;
  BackwardPlan plan_;
  const Exported& kernel_;
  Workspace workspace_;
};

}  // namespace

BackwardPlan::BackwardPlan(const BackwardKernels& kernels, std::span<const Slice> slices, const CallExtents& extents,
                           bool init_dq, bool init_dkv) {
  std::optional<BackwardLaunches> direct;
  if (kernels.direct != nullptr) direct = direct_launch(slices, kernels.direct->dq.rows, extents.batch, extents.rows_k);
  kernel = direct ? kernels.direct : kernels.any;
  const bool apart = kernel->kind == Kind::deterministic;
  work = direct ? std::move(*direct) : backward_launches(slices, kernel->dq.rows, kernel->dkv.rows, apart);
  rows_q = work.q.rows;
  rows_k = work.k.rows;
  if (init_dq) gaps_q = gaps(work.q, extents.batch, extents.rows_q, kernel->dq.rows, rows_q);
  if (init_dkv && !is_direct()) gaps_k = gaps(work.k, extents.batch, extents.rows_k, kernel->dkv.rows, rows_k);
  const std::int64_t sums_q = extents.heads_q * work.q.rows * kFloat, sums_k = extents.heads_kv * work.k.rows * kFloat;
  lse = layout.take(sums_q);
  delta = layout.take(sums_q);
  dq = layout.take(sums_q * kernel->d);
  dk = layout.take(sums_k * kernel->d);
  dv = layout.take(sums_k * kernel->d_v);
  end = layout.take(0);
  segments_q = layout.take(segment_bytes(work.q, gaps_q));
  segments_k = layout.take(segment_bytes(work.k, gaps_k));
  for (const Launch& one : work.launches) tables.push_back(layout.take(table_bytes(one, Side::key, kernel->dkv.rows)));
  if (kernel->kind != Kind::deterministic) return;
  constexpr std::int64_t kInt = sizeof(std::int32_t);
  const std::int64_t pieces = most_pieces(work.launches);
  const std::int64_t tiles_k = most_tiles(work.launches, Side::key, kernel->dkv.rows);
  turns_q = layout.take(kInt * pieces * extents.heads_q * most_tiles(work.launches, Side::query, kernel->dq.rows));
  turns_k = layout.take(2 * kInt * pieces * extents.heads_kv * tiles_k);
  turns_v = layout.take(2 * kInt * pieces * extents.heads_kv * tiles_k);
  turns_end = layout.take(0);
}

BackwardArgs entry_of(const BackwardArgs& args, std::int64_t batch) {
  BackwardArgs part = args;
  for (TensorView* view :
       {&part.q, &part.k, &part.v, &part.dout, &part.lse, &part.delta, &part.dq, &part.dk, &part.dv}) {
    *view = entry(*view, batch);
  }
  return part;
}

void backward(const BackwardKernels& kernels, const BackwardArgs& args, const KernelContext& context) {
  if (args.q.batch() == 0) return;
  std::vector<TensorView> keys{args.k, args.v};
  if (kernels.direct != nullptr) keys.insert(keys.end(), {args.dk, args.dv});
  for_each_fold(args, std::array{args.q, args.dout}, keys,
                [&](const BackwardArgs& part, const Folds& folds) { Backward(kernels, part, folds, context).run(); });
}

}  // namespace rotunda::fa4
