// Backward in two kernels that each recompute P from the final lse: with dP = dout·Vᵀ and dS = P∘(dP - delta),
// dq = scale·dS·K by tiles of query rows; dk = scale·dSᵀ·Q and dv = Pᵀ·dout by tiles of keys, which go through the
// query heads of their KV head in order. Every sum has one owner and one order.
#include "kernel/reference/cuda/cuda_reference_kernel.hpp"
#include "kernel/reference/cuda/tile.cuh"

namespace rotunda::reference {
namespace {

struct BackwardCall {
  DeviceView q, k, v, dout, lse, delta, dq, dk, dv;
  const Slice* slices;
  int slice_count;
  std::int64_t rows_q, rows_k, tiles;
  int heads_q, heads_kv;
  HeadMap map;
  double scale;
  bool init_dq, init_dkv;
};

/// Shared memory beside the tiles.
struct BackwardShared {
  double scores[2][kScores];  ///< first Q·Kᵀ and dout·Vᵀ, then P and dS
  double lse[kRows], delta[kRows];
  unsigned visible[kRows];
};

/// The tiles of a block.
struct Tiles {
  float *q, *dout, *k, *v;

  __device__ Tiles(float* memory, int d, int d_v)
      : q(memory),
        dout(q + kRows * tile_stride(d)),
        k(dout + kRows * tile_stride(d_v)),
        v(k + kKeys * tile_stride(d)) {}
};

[[nodiscard]] std::int64_t tile_bytes(const BackwardCall& call) {
  return std::int64_t{kRows + kKeys} * (tile_stride(call.q.dim) + tile_stride(call.v.dim)) *
         static_cast<std::int64_t>(sizeof(float));
}

/// Rows [first, first + count) of q and dout with their statistics; whether a NaN or an infinity is among them.
__device__ bool load_queries(const BackwardCall& call, std::int64_t batch, int head, std::int64_t first, int count,
                             const Tiles& tiles, BackwardShared& shared) {
  const bool bad_q = load_rows(call.q, batch, head, first, count, kRows, tiles.q);
  const bool bad_dout = load_rows(call.dout, batch, head, first, count, kRows, tiles.dout);
  const int row = static_cast<int>(threadIdx.x);
  if (row < kRows) {
    shared.lse[row] = row < count ? *call.lse.at<float>(batch, first + row, head) : kMinusInfinity;
    shared.delta[row] = row < count ? *call.delta.at<float>(batch, first + row, head) : 0;
  }
  return bad_q || bad_dout;
}

/// Turns what was loaded into P and dS, 0 where not visible. Starts and ends with the block in step.
__device__ void make_scores(const BackwardCall& call, const Tiles& tiles, BackwardShared& shared) {
  const Lane lane;
  if (lane.warp < kWarps / 2) {
    score_block(tiles.q, tiles.k, tile_stride(call.q.dim), 0, (call.q.dim + 7) / 8 * 8, lane.warp, shared.scores[0]);
  } else {
    score_block(tiles.dout, tiles.v, tile_stride(call.v.dim), 0, (call.v.dim + 7) / 8 * 8, lane.warp - kWarps / 2,
                shared.scores[1]);
  }
  __syncthreads();
  const int row = static_cast<int>(threadIdx.x) / kKeys, key = static_cast<int>(threadIdx.x) % kKeys;
  double& p = shared.scores[0][row * kScoreStride + key];
  double& ds = shared.scores[1][row * kScoreStride + key];
  const bool visible = (shared.visible[row] >> key & 1U) != 0;
  p = visible ? exp(call.scale * p - shared.lse[row]) : 0;
  ds = visible ? p * (ds - shared.delta[row]) : 0;
  __syncthreads();
}

/// Keys that row `row` of the tile sees; a row with lse = -inf gives no key weight.
__device__ unsigned visible_to(const BackwardShared& shared, const Slice& slice, std::int64_t i, std::int64_t j,
                               int row) {
  return shared.lse[row] == kMinusInfinity ? 0 : visible_keys(slice, i, j);
}

template <int kColumns>
__global__ void __launch_bounds__(kThreads) dq_kernel(const BackwardCall call) {
  extern __shared__ float memory[];
  __shared__ BackwardShared shared;
  const Tiles tiles(memory, call.q.dim, call.v.dim);
  const TilePlace place(call.tiles, call.heads_q, kRows);
  const int rows = static_cast<int>(min(call.rows_q - place.first, std::int64_t{kRows}));
  const int kv_head = call.map.kv(place.head), thread = static_cast<int>(threadIdx.x);
  load_queries(call, place.batch, place.head, place.first, rows, tiles, shared);

  Accumulator<kRows / 8, kColumns> sum;
  bool met = false;
  for (int n = 0; n < call.slice_count; ++n) {
    const Slice slice = call.slices[n];
    const std::int64_t begin = max(place.first - slice.q_begin, std::int64_t{0});
    const std::int64_t end = min(place.first + rows - slice.q_begin, slice.q_len);
    if (slice.batch != place.batch || begin >= end) continue;
    const std::int64_t last_key = KeyRange(slice, end - 1).end;
    for (std::int64_t j = KeyRange(slice, begin).begin; j < last_key; j += kKeys) {
      const int count = static_cast<int>(min(last_key - j, std::int64_t{kKeys}));
      __syncthreads();  // the keys before have been used
      const bool bad = load_rows(call.k, place.batch, kv_head, slice.k_begin + j, count, kKeys, tiles.k);
      load_rows(call.v, place.batch, kv_head, slice.k_begin + j, count, kKeys, tiles.v);
      if (thread < kRows) {
        shared.visible[thread] = visible_to(shared, slice, place.first + thread - slice.q_begin, j, thread);
      }
      const bool careful = __syncthreads_or(bad ? 1 : 0) != 0;
      make_scores(call, tiles, shared);
      if (careful) {
        accumulate_visible<false>(shared.scores[1], shared.visible, tiles.k, call.q.dim, sum);
      } else {
        accumulate<false>(shared.scores[1], tiles.k, call.q.dim, sum);
      }
      met = true;
    }
  }
  if (!met && !call.init_dq) return;
  sum.each(rows, call.q.dim, [&](int row, int i, double value) {
    float& to = call.dq.at<float>(place.batch, place.first + row, place.head)[i];
    to = static_cast<float>(call.scale * value + (call.init_dq ? 0.0 : static_cast<double>(to)));
  });
}

/// Sums of a tile of keys.
template <int kColumns>
struct KeySums {
  Accumulator<kKeys / 8, kColumns> dk, dv;
};

/// Adds the rows of a slice that see keys of the tile, for one query head; returns whether there were any.
template <int kColumns>
__device__ bool add_rows(const BackwardCall& call, const TilePlace& place, const Slice& slice, int head, int keys,
                         const Tiles& tiles, BackwardShared& shared, KeySums<kColumns>& sums) {
  const std::int64_t begin = max(place.first - slice.k_begin, std::int64_t{0});
  const std::int64_t end = min(place.first + keys - slice.k_begin, slice.k_len);
  if (slice.batch != place.batch || begin >= end) return false;
  const int thread = static_cast<int>(threadIdx.x);
  const std::int64_t last_row = RowRange(slice, end - 1).end;
  bool met = false;
  for (std::int64_t i = RowRange(slice, begin).begin; i < last_row; i += kRows) {
    const int count = static_cast<int>(min(last_row - i, std::int64_t{kRows}));
    __syncthreads();  // the rows before have been used
    const bool bad = load_queries(call, place.batch, head, slice.q_begin + i, count, tiles, shared);
    if (thread < kRows) {  // the thread that wrote lse[thread]
      const unsigned visible = visible_to(shared, slice, i + thread, place.first - slice.k_begin, thread);
      shared.visible[thread] = thread < count ? visible : 0;
    }
    const bool careful = __syncthreads_or(bad ? 1 : 0) != 0;
    make_scores(call, tiles, shared);
    if (careful) {
      accumulate_visible<true>(shared.scores[1], shared.visible, tiles.q, call.q.dim, sums.dk);
      accumulate_visible<true>(shared.scores[0], shared.visible, tiles.dout, call.v.dim, sums.dv);
    } else {
      accumulate<true>(shared.scores[1], tiles.q, call.q.dim, sums.dk);
      accumulate<true>(shared.scores[0], tiles.dout, call.v.dim, sums.dv);
    }
    met = true;
  }
  return met;
}

template <int kColumns>
__global__ void __launch_bounds__(kThreads) dkv_kernel(const BackwardCall call) {
  extern __shared__ float memory[];
  __shared__ BackwardShared shared;
  const Tiles tiles(memory, call.q.dim, call.v.dim);
  const TilePlace place(call.tiles, call.heads_kv, kKeys);
  const int keys = static_cast<int>(min(call.rows_k - place.first, std::int64_t{kKeys}));
  load_rows(call.k, place.batch, place.head, place.first, keys, kKeys, tiles.k);
  load_rows(call.v, place.batch, place.head, place.first, keys, kKeys, tiles.v);

  KeySums<kColumns> sums;
  bool met = false;
  for (int head = 0; head < call.heads_q; ++head) {
    if (call.map.kv(head) != place.head) continue;
    for (int n = 0; n < call.slice_count; ++n) {
      met = add_rows(call, place, call.slices[n], head, keys, tiles, shared, sums) || met;
    }
  }
  if (!met && !call.init_dkv) return;
  const auto write = [&](const DeviceView& view, auto& sum, double scale) {
    sum.each(keys, view.dim, [&](int key, int i, double value) {
      float& to = view.at<float>(place.batch, place.first + key, place.head)[i];
      to = static_cast<float>(scale * value + (call.init_dkv ? 0.0 : static_cast<double>(to)));
    });
  };
  write(call.dk, sums.dk, call.scale);
  write(call.dv, sums.dv, 1);
}

}  // namespace

void cuda_backward(const BackwardArgs& args, Stream stream) {
  BackwardCall call{.q = DeviceView(args.q),
                    .k = DeviceView(args.k),
                    .v = DeviceView(args.v),
                    .dout = DeviceView(args.dout),
                    .lse = DeviceView(args.lse),
                    .delta = DeviceView(args.delta),
                    .dq = DeviceView(args.dq),
                    .dk = DeviceView(args.dk),
                    .dv = DeviceView(args.dv),
                    .slices = args.device_slices,
                    .slice_count = static_cast<int>(args.slices.size()),
                    .rows_q = args.q.rows(),
                    .rows_k = args.k.rows(),
                    .tiles = (args.q.rows() + kRows - 1) / kRows,
                    .heads_q = static_cast<int>(args.q.heads()),
                    .heads_kv = static_cast<int>(args.k.heads()),
                    .map = args.heads,
                    .scale = args.scale,
                    .init_dq = args.init_dq,
                    .init_dkv = args.init_dkv};
  const std::int64_t batch = args.q.batch();
  if (call.slice_count > 0 || call.init_dq) {
    dispatch_columns(args.q.dim(), [&](auto columns) {
      launch_tiles(dq_kernel<columns>, call, call.tiles * call.heads_q * batch, tile_bytes(call), stream,
                   "reference dq");
    });
  }
  if (call.slice_count > 0 || call.init_dkv) {
    call.tiles = (call.rows_k + kKeys - 1) / kKeys;
    dispatch_columns(std::max(args.q.dim(), args.v.dim()), [&](auto columns) {
      launch_tiles(dkv_kernel<columns>, call, call.tiles * call.heads_kv * batch, tile_bytes(call), stream,
                   "reference dkv");
    });
  }
}

}  // namespace rotunda::reference
