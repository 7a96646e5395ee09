// Forward: a block a tile of query rows of one head; online softmax in float64 over the slices that meet the tile.
#include "kernel/reference/cuda/cuda_reference_kernel.hpp"
#include "kernel/reference/cuda/tile.cuh"

namespace rotunda::reference {
namespace {

struct ForwardCall {
  DeviceView q, k, v, acc, lse, lse_low, out;
  const Slice* slices;
  int slice_count;
  std::int64_t rows, tiles;
  int heads;
  HeadMap map;
  double scale;
  float* max_logit;
  bool init, last;
};

/// Shared memory beside the tiles.
struct ForwardShared {
  double scores[2][kScores];
  double factor[kRows];  ///< of a tile's accumulators: first exp(old maximum - new one), last 1 / Σ weights
  double lse[kRows];
  unsigned visible[kRows];
  bool write[kRows];
  float top[kRows];
};

/// The softmax of a row, kept by the 16 lanes that share it: with base = max logit so far, sum = Σ exp(logit - base).
struct RowSoftmax {
  double max = kMinusInfinity, sum = 0, top = kMinusInfinity;
  bool seen = false;

  __device__ static double base(double maximum) { return maximum == kMinusInfinity ? 0 : maximum; }

  /// Takes in this lane's logit; returns its weight, and in factor what the sums so far are to be multiplied by.
  __device__ double add(double logit, unsigned visible_row, bool visible, double* factor) {
    double most = visible ? logit : kMinusInfinity;
    for (int step = kKeys / 2; step > 0; step /= 2) most = greater(most, __shfl_xor_sync(0xffffffffU, most, step));
    top = greater(top, most);
    const double greatest = fmax(max, most);  // a NaN is in the sum
    const double weight = visible ? exp(logit - base(greatest)) : 0;
    double total = weight;
    for (int step = kKeys / 2; step > 0; step /= 2) total += __shfl_xor_sync(0xffffffffU, total, step);
    *factor = exp(max - base(greatest));
    sum = sum * *factor + total;
    max = greatest;
    seen = seen || visible_row != 0;
    return weight;
  }
};

/// The state so far of the thread's row.
__device__ RowSoftmax start_row(const ForwardCall& call, const TilePlace& place, int row) {
  RowSoftmax state;
  if (call.init || place.first + row >= call.rows) return state;
  const double high = *call.lse.at<float>(place.batch, place.first + row, place.head);
  state.max = high;
  if (high == kMinusInfinity) return state;
  if (call.lse_low.data != nullptr) {
    state.max += *call.lse_low.at<float>(place.batch, place.first + row, place.head);
  }
  state.sum = 1;
  return state;
}

/// lse, and for the accumulators the divisor and whether to write.
__device__ void finish_row(const ForwardCall& call, const TilePlace& place, int row, const RowSoftmax& state,
                           ForwardShared& shared) {
  const std::int64_t at = place.first + row;
  const bool write = at < call.rows && (state.seen || call.init || call.last);
  shared.write[row] = write;
  shared.factor[row] = state.sum == 0 ? 1 : state.sum;  // every logit is -inf: as if nothing were visible
  shared.top[row] = static_cast<float>(state.top);
  if (!write) return;
  const double lse = RowSoftmax::base(state.max) + log(state.sum);
  const auto high = static_cast<float>(lse);
  *call.lse.at<float>(place.batch, at, place.head) = high;
  if (call.last || call.lse_low.data == nullptr) return;
  const double low = lse - static_cast<double>(high);
  *call.lse_low.at<float>(place.batch, at, place.head) = lse == kMinusInfinity ? 0.0F : static_cast<float>(low);
}

/// Keys [j, j + kKeys) of a slice, up to `end`: scores, weights, and the accumulators with them.
template <int kColumns>
__device__ void add_keys(const ForwardCall& call, const TilePlace& place, const Slice& slice, std::int64_t j,
                         std::int64_t end, float* const (&tiles)[3], ForwardShared& shared, RowSoftmax& softmax,
                         Accumulator<kRows / 8, kColumns>& sum) {
  const Lane lane;
  const int thread = static_cast<int>(threadIdx.x), kv_head = call.map.kv(place.head);
  const int count = static_cast<int>(min(end - j, std::int64_t{kKeys}));
  __syncthreads();  // the tiles and scores of the keys before have been read
  load_rows(call.k, place.batch, kv_head, slice.k_begin + j, count, kKeys, tiles[1]);
  const bool bad = load_rows(call.v, place.batch, kv_head, slice.k_begin + j, count, kKeys, tiles[2]);
  if (thread < kRows) shared.visible[thread] = visible_keys(slice, place.first + thread - slice.q_begin, j);
  const bool careful = __syncthreads_or(bad ? 1 : 0) != 0;

  // Eight warps sum over the first half of the head dim, eight over the second.
  const int width = (call.q.dim + 7) / 8 * 8, middle = width / 8 * 4, half = lane.warp / 8;
  score_block(tiles[0], tiles[1], tile_stride(call.q.dim), half == 0 ? 0 : middle, half == 0 ? middle : width,
              lane.warp % 8, shared.scores[half]);
  __syncthreads();

  const int row = thread / kKeys, key = thread % kKeys;
  double* score = shared.scores[0] + row * kScoreStride + key;
  const double logit = call.scale * (*score + shared.scores[1][row * kScoreStride + key]);
  const unsigned visible = shared.visible[row];
  double factor;
  *score = softmax.add(logit, visible, (visible >> key & 1U) != 0, &factor);
  if (key == 0) shared.factor[row] = factor;
  __syncthreads();

  sum.each(kRows, kColumns * kWarps * 8, [&](int r, int, double& value) { value *= shared.factor[r]; });
  if (careful) {
    accumulate_visible<false>(shared.scores[0], shared.visible, tiles[2], call.v.dim, sum);
  } else {
    accumulate<false>(shared.scores[0], tiles[2], call.v.dim, sum);
  }
}

template <int kColumns>
__global__ void __launch_bounds__(kThreads) forward_kernel(const ForwardCall call) {
  extern __shared__ float memory[];
  __shared__ ForwardShared shared;
  float* const tiles[3] = {memory, memory + kRows * tile_stride(call.q.dim),
                           memory + (kRows + kKeys) * tile_stride(call.q.dim)};
  const TilePlace place(call.tiles, call.heads, kRows);
  const int rows = static_cast<int>(min(call.rows - place.first, std::int64_t{kRows}));
  const int row = static_cast<int>(threadIdx.x) / kKeys;

  RowSoftmax softmax = start_row(call, place, row);
  Accumulator<kRows / 8, kColumns> sum;
  if (!call.init) {
    sum.each(rows, call.v.dim, [&](int r, int i, double& value) {
      const float lse = *call.lse.at<float>(place.batch, place.first + r, place.head);
      if (lse != -HUGE_VALF) value = call.acc.at<float>(place.batch, place.first + r, place.head)[i];
    });
    __syncthreads();  // every lse has been read before one is written
  }
  load_rows(call.q, place.batch, place.head, place.first, rows, kRows, tiles[0]);

  for (int n = 0; n < call.slice_count; ++n) {
    const Slice slice = call.slices[n];
    const std::int64_t begin = max(place.first - slice.q_begin, std::int64_t{0});
    const std::int64_t end = min(place.first + rows - slice.q_begin, slice.q_len);
    if (slice.batch != place.batch || begin >= end) continue;
    const std::int64_t last_key = KeyRange(slice, end - 1).end;
    for (std::int64_t j = KeyRange(slice, begin).begin; j < last_key; j += kKeys) {
      add_keys(call, place, slice, j, last_key, tiles, shared, softmax, sum);
    }
  }

  __syncthreads();
  if (threadIdx.x % kKeys == 0) finish_row(call, place, row, softmax, shared);
  __syncthreads();
  const DeviceView& to = call.last ? call.out : call.acc;
  sum.each(rows, call.v.dim, [&](int r, int i, double value) {
    if (shared.write[r]) store(to, place.batch, place.first + r, place.head, i, value / shared.factor[r]);
  });
  if (call.max_logit == nullptr || threadIdx.x != 0) return;
  float top = -HUGE_VALF;
  for (int r = 0; r < rows; ++r) top = greater(top, shared.top[r]);
  if (top != -HUGE_VALF) raise(call.max_logit + place.head, top);
}

}  // namespace

void cuda_forward(const ForwardArgs& args, Stream stream) {
  const std::int64_t rows = args.q.rows(), tiles = (rows + kRows - 1) / kRows;
  const ForwardCall call{.q = DeviceView(args.q),
                         .k = DeviceView(args.k),
                         .v = DeviceView(args.v),
                         .acc = DeviceView(args.acc),
                         .lse = DeviceView(args.lse),
                         .lse_low = DeviceView(args.lse_low),
                         .out = DeviceView(args.out),
                         .slices = args.device_slices,
                         .slice_count = static_cast<int>(args.slices.size()),
                         .rows = rows,
                         .tiles = tiles,
                         .heads = static_cast<int>(args.q.heads()),
                         .map = args.heads,
                         .scale = args.scale,
                         .max_logit = args.max_logit,
                         .init = args.init,
                         .last = args.last};
  if (args.slices.empty() && !args.init && !args.last) return;
  const std::int64_t floats = (kRows + kKeys) * tile_stride(call.q.dim) + kKeys * tile_stride(call.v.dim);
  dispatch_columns(args.v.dim(), [&](auto columns) {
    launch_tiles(forward_kernel<columns>, call, tiles * call.heads * args.q.batch(),
                 floats * static_cast<std::int64_t>(sizeof(float)), stream, "reference forward");
  });
}

}  // namespace rotunda::reference
