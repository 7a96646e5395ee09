// The state of an item's rows, from memory and to it.
#pragma once

#include <cmath>
#include <type_traits>

#include "kernel/cuda/contract.cuh"
#include "kernel/sm90/ptx/cluster.cuh"
#include "kernel/sm90/ptx/global.cuh"
#include "kernel/sm90/ptx/registers.cuh"
#include "kernel/sm90/tensor_map.hpp"
#include "kernel/sm90/wide/shape.cuh"

namespace rotunda::sm90::wide {

constexpr float kNothing = -HUGE_VALF;  ///< of a maximum or an lse

/// Which part of a CTA's O a thread holds (wgmma.cuh): rows row() and row() + 8, and of its consumer's columns two in
/// eight. Worked out where it is needed: registers are scarcer than instructions.
struct ThreadPlace {
  int chunk;  ///< of 64 columns, the consumer's first

  [[nodiscard]] __device__ __forceinline__ int warp() const { return static_cast<int>(threadIdx.x) % kWarpgroup / 32; }
  [[nodiscard]] __device__ __forceinline__ int lane() const { return static_cast<int>(threadIdx.x) % 32; }
  [[nodiscard]] __device__ __forceinline__ int quad() const { return static_cast<int>(threadIdx.x) % 4; }
  /// Of the CTA's rows, and of the block's.
  [[nodiscard]] __device__ __forceinline__ int row() const { return warp() * 16 + lane() / 4; }
  [[nodiscard]] __device__ __forceinline__ int block_row() const {
    return kRows * static_cast<int>(ptx::cluster_rank()) + row();
  }
  [[nodiscard]] __device__ __forceinline__ bool first() const { return warp() == 0 && lane() == 0; }
};

/// Where a thread's first (r = 0) or second row of an item lies. Column c of O is column c - shift of the row.
struct RowPlace {
  int batch, head, row, shift;
  bool exists;

  __device__ __forceinline__ RowPlace(const ForwardCall& call, const Tile& tile, const ThreadPlace& place, int r)
      : batch(tile.batch),
        head(tile.head),
        row(tile.row() + place.block_row() + 8 * r),
        shift(call.v_shift.of(tile.kv_head)),
        exists(row < call.list.rows) {}
};

/// The reference that stands for an lse of the state so far.
__device__ __forceinline__ float reference_of(const ForwardCall& call, float lse) {
  return lse * call.inverse_scale;
}
__device__ __forceinline__ float load_reference(const ForwardCall& call, const RowPlace& at) {
  return at.exists ? reference_of(call, call.lse.at(at.batch, at.row, at.head)) : kNothing;
}

/// Calls body(integral constant i) for i from 0 to kCount - 1.
template <int kCount, int kStep = 1, class Body>
__device__ __forceinline__ void unrolled(Body&& body) {
  if constexpr (kCount > kStep) unrolled<kCount - kStep, kStep>(body);
  body(std::integral_constant<int, kCount - kStep>{});
}

/// O of a row (r: the thread's first or second) of the state so far; 0 where it is empty.
template <int kColumns>
__device__ __forceinline__ void load_acc(const ForwardCall& call, const RowPlace& at, const ThreadPlace& place, int r,
                                         float (&o)[kColumns / 2]) {
  const bool holds = at.exists && call.lse.at(at.batch, at.row, at.head) != kNothing;
  const int column = place.chunk * kChunk + 2 * place.quad() - at.shift, limit = holds ? call.value_dim - column : 0;
  const float* const from = call.acc.data + call.acc.offset(at.batch, at.row, at.head) + column;
  unrolled<kColumns / 8>([&](auto i) {
    const float2 pair = ptx::load_below<8 * i>(i == 0 && column < 0 ? 0 : limit, from + 8 * i);
    o[4 * i + 2 * r] = pair.x;
    o[4 * i + 2 * r + 1] = pair.y;
  });
}

/// A transposition among four lanes: lane q gives x[i] of its own and gets x[q] of lane i as x[i].
__device__ __forceinline__ void transpose_quad(std::uint32_t (&x)[4], int quad) {
  const auto exchange = [&](std::uint32_t& a, std::uint32_t& b, int bit) {
    const bool upper = (quad & bit) != 0;
    const std::uint32_t got = __shfl_xor_sync(0xffffffffU, upper ? a : b, bit);
    (upper ? a : b) = got;
  };
  exchange(x[0], x[1], 1);
  exchange(x[2], x[3], 1);
  exchange(x[0], x[2], 2);
  exchange(x[1], x[3], 2);
}

/// A row of O, times `factor`, as 16 bits: 16 bytes at a time.
template <class T, int kColumns>
__device__ __forceinline__ void store_out(const ForwardCall& call, const RowPlace& at, const ThreadPlace& place, int r,
                                          const float (&o)[kColumns / 2], float factor) {
  const int column = place.chunk * kChunk + 8 * place.quad() - at.shift;
  const int limit = at.exists ? call.value_dim - column : 0;
  std::uint16_t* const to = call.out.data + call.out.offset(at.batch, at.row, at.head) + column;
  unrolled<kColumns / 8, 4>([&](auto i) {
    std::uint32_t pairs[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const float* const e = o + 4 * (i + j) + 2 * r;
      pairs[j] = ptx::pack<T>(e[0] * factor, e[1] * factor);
    }
    transpose_quad(pairs, place.quad());
    ptx::store_below<8 * i>(i == 0 && column < 0 ? 0 : limit, to + 8 * i, pairs);
  });
}

template <int kColumns>
__device__ __forceinline__ void store_acc(const ForwardCall& call, const RowPlace& at, const ThreadPlace& place, int r,
                                          const float (&o)[kColumns / 2], float factor) {
  const int column = place.chunk * kChunk + 2 * place.quad() - at.shift;
  const int limit = at.exists ? call.value_dim - column : 0;
  float* const to = call.acc.data + call.acc.offset(at.batch, at.row, at.head) + column;
  unrolled<kColumns / 8>([&](auto i) {
    ptx::store_below<8 * i>(i == 0 && column < 0 ? 0 : limit, to + 8 * i,
                            {o[4 * i + 2 * r] * factor, o[4 * i + 2 * r + 1] * factor});
  });
}

/// lse of a row, in fp32: the low part is 0, since the sums are no finer. A row that saw nothing keeps what it has.
__device__ __forceinline__ void store_lse(const ForwardCall& call, const RowPlace& at, float reference, float sum) {
  float* const lse = &call.lse.at(at.batch, at.row, at.head);
  const bool same = !call.init && (sum == 0 || (sum == 1 && reference == reference_of(call, *lse)));
  if (!same) {
    *lse = sum == 0 ? kNothing : reference * call.scale + __logf(sum);
    if (!call.last && call.lse_low.data != nullptr) call.lse_low.at(at.batch, at.row, at.head) = 0;
  }
}

template <int kColumns>
__device__ __forceinline__ void load_state(const ForwardCall& call, const Tile& tile, const ThreadPlace& place,
                                           float (&o)[kColumns / 2]) {
#pragma unroll
  for (int r = 0; r < 2; ++r) load_acc<kColumns>(call, RowPlace(call, tile, place, r), place, r, o);
}

template <class T, int kColumns>
__device__ __forceinline__ void store_state(const ForwardCall& call, const Tile& tile, const ThreadPlace& place,
                                            const float (&o)[kColumns / 2], const float (&reference)[2],
                                            const float (&sum)[2]) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const RowPlace at(call, tile, place, r);
    const float factor = sum[r] == 0 ? 0.0F : __fdividef(1.0F, sum[r]);  // NaN stays
    if (place.chunk == 0 && place.quad() == 0 && at.exists) store_lse(call, at, reference[r], sum[r]);
    if (call.last) {
      store_out<T, kColumns>(call, at, place, r, o, factor);
    } else {
      store_acc<kColumns>(call, at, place, r, o, factor);
    }
  }
}

/// A float's bits as an integer of the same order, NaN the greatest; the way back is the same.
__device__ __forceinline__ int ordered(int bits) {
  return bits ^ (bits >> 31 & 0x7fffffff);
}

/// The greatest S that the warp saw, scaled. Maxima pass over NaN, which the rows' sums have kept; so they have of an
/// infinite S.
__device__ __forceinline__ void raise_max_logit(const ForwardCall& call, const Tile& tile, float top,
                                                const float (&sum)[2]) {
  if (isnan(sum[0] + sum[1]) && top != HUGE_VALF) top = NAN;
  top = __int_as_float(ordered(__reduce_max_sync(0xffffffffU, ordered(__float_as_int(top)))));
  if (threadIdx.x % 32 == 0 && top != kNothing) cuda::raise(call.max_logit + tile.head, top * call.scale);
}

/// Rows of blocks without a tile: an empty state begins, an open one ends. The consumers' warps of all CTAs share them.
template <class T>
__device__ void finish_idle_rows(const ForwardCall& call) {
  if (!call.init && !call.last) return;
  constexpr int kWarps = kConsumers * kWarpgroup / 32;
  const WorkList& list = call.list;
  const int first = list.head->blocks, items = (list.block_count - first) * call.heads;
  const int warp = static_cast<int>(threadIdx.x) / 32 % kWarps, lane = static_cast<int>(threadIdx.x) % 32;
  for (int i = static_cast<int>(blockIdx.x); i < items; i += static_cast<int>(gridDim.x)) {
    const Block block = list.blocks[first + i / call.heads];
    const int head = i % call.heads, end = min(block.row + kBlockRows, list.rows);
    for (int row = block.row + warp; row < end; row += kWarps) {
      float* const acc = call.acc.data + call.acc.offset(block.batch, row, head);
      std::uint16_t* const out = call.out.data + call.out.offset(block.batch, row, head);
      for (int column = 2 * lane; column < call.value_dim; column += 64) {
        const float2 pair = call.init ? float2{0, 0} : *reinterpret_cast<const float2*>(acc + column);
        if (call.last) {
          *reinterpret_cast<std::uint32_t*>(out + column) = ptx::pack<T>(pair.x, pair.y);
        } else {
          *reinterpret_cast<float2*>(acc + column) = pair;
        }
      }
      if (!call.init || lane != 0) continue;
      call.lse.at(block.batch, row, head) = kNothing;
      if (!call.last && call.lse_low.data != nullptr) call.lse_low.at(block.batch, row, head) = 0;
    }
  }
}

}  // namespace rotunda::sm90::wide
