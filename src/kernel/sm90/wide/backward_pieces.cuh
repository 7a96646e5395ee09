// From accumulators to the pools: 16-bit pieces of tiles.
#pragma once

#include <type_traits>

#include "kernel/sm90/ptx/bulk.cuh"
#include "kernel/sm90/ptx/registers.cuh"
#include "kernel/sm90/wide/backward_work.hpp"

namespace rotunda::sm90::wide {

constexpr int kWarpRows = 16;
/// What a warp stores at once: its rows of one key block.
constexpr std::uint32_t kPieceBytes = kWarpRows * kBlock * 2;
constexpr int kPieces = 2;  ///< that leave together: what orders their writes costs as much as the writes

/// The two values that a pair holds.
template <class T>
__device__ float2 unpack(std::uint32_t pair) {
  if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    return {__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000U)};
  } else {
    return __half22float2(reinterpret_cast<const __half2&>(pair));
  }
}

/// A warp's way to the pools: 16 rows of a key block at a time, swizzled as the gradient kernel's wgmma reads them.
class PieceWriter {
 public:
  __device__ PieceWriter(std::uint32_t memory, int warp)
      : memory_(memory + static_cast<std::uint32_t>(warp * kPieces) * kPieceBytes) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    row_ = static_cast<std::uint32_t>(lane % 16) * 128;
    swizzle_ = static_cast<std::uint32_t>(lane % 8);
    chunk_ = static_cast<std::uint32_t>(lane / 16);
  }

  /// Pieces of kPieces neighbouring key blocks. pairs[2·b + i]: columns 8·b + … of row i of the thread.
  template <class T>
  __device__ void write(const std::uint32_t* pairs, T* to) const {
    if (ptx::elect_lane()) ptx::bulk_wait_read<0>();
    __syncwarp();
#pragma unroll
    for (int b = 0; b < 8 * kPieces; b += 2) {
      const std::uint32_t m[4] = {pairs[2 * b], pairs[2 * b + 1], pairs[2 * b + 2], pairs[2 * b + 3]};
      ptx::store_matrices(memory_ + b / 8 * kPieceBytes + row_ + (((chunk_ + b % 8) ^ swizzle_) << 4), m);
    }
    ptx::fence_async_proxy();
    __syncwarp();
    if (!ptx::elect_lane()) return;
#pragma unroll
    for (int n = 0; n < kPieces; ++n) {
      ptx::bulk_store(to + n * kTileRows * kBlock, memory_ + n * kPieceBytes, kPieceBytes);
    }
    ptx::bulk_commit();
  }
  __device__ void finish() const {
    if (ptx::elect_lane()) ptx::bulk_wait<0>();
  }

 private:
  std::uint32_t memory_, row_, swizzle_, chunk_;
};

}  // namespace rotunda::sm90::wide
