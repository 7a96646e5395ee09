// What forward and backward share: a tile is kRows query rows by kKeys key rows of one head.
//
// Rows of q, k, v, dout lie in shared memory as fp32 (exact for every dtype), scores as float64, and all products run
// on the float64 tensor cores, 8 × 8 outputs a warp and step of 4 (mma.m8n8k4). A product over a head dim keeps query
// rows and keys apart, so a NaN stays in its row or column. A product over rows or keys does not (0·NaN): where a row
// that was loaded holds a NaN or an infinity, `accumulate` adds pair by pair and leaves out what is not visible.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cmath>
#include <cstdint>

#include "base/cuda/check.hpp"
#include "base/cuda/vectors.cuh"
#include "kernel/cuda/contract.cuh"
#include "kernel/kernel.hpp"

namespace rotunda::reference {

constexpr int kRows = 32;
constexpr int kKeys = 16;
constexpr int kThreads = 512;
constexpr int kWarps = kThreads / 32;
constexpr int kScoreStride = kKeys + 4;  // doubles: the lanes of a fragment fall into different banks
constexpr int kScores = kRows * kScoreStride;
constexpr double kMinusInfinity = -HUGE_VAL;

/// Floats from one row of a tile to the next: 4 modulo 32, so that eight rows of four fall into different banks.
__host__ __device__ constexpr int tile_stride(int dim) {
  return (dim + 31) / 32 * 32 + 4;
}

/// A TensorView on the device.
struct DeviceView {
  void* data = nullptr;
  DType dtype = DType::fp32;
  std::int64_t batch = 0, row = 0, head = 0;
  int dim = 0;

  DeviceView() = default;
  explicit DeviceView(const TensorView& view)
      : data(view.data),
        dtype(view.dtype),
        batch(view.stride[0]),
        row(view.stride[1]),
        head(view.stride[2]),
        dim(static_cast<int>(view.shape[3])) {
    ROTUNDA_CHECK(view.data == nullptr || view.shape[3] <= 1 || view.stride[3] == 1);
  }
  template <class T>
  __device__ T* at(std::int64_t b, std::int64_t r, std::int64_t h) const {
    return static_cast<T*>(data) + b * batch + r * row + h * head;
  }
};

/// Element of a row, in the view's dtype.
__device__ inline void store(const DeviceView& view, std::int64_t b, std::int64_t row, int head, int i, double value) {
  const auto narrow = static_cast<float>(value);
  if (view.dtype == DType::fp32) {
    view.at<float>(b, row, head)[i] = narrow;
  } else if (view.dtype == DType::bf16) {
    view.at<__nv_bfloat16>(b, row, head)[i] = __float2bfloat16_rn(narrow);
  } else {
    view.at<__half>(b, row, head)[i] = __float2half_rn(narrow);
  }
}

using cuda::clamp_edge;
using cuda::greater;
using cuda::raise;
using cuda::widen;

template <class T>
__device__ bool load_rows_as(const DeviceView& view, std::int64_t b, int head, std::int64_t first, int valid, int rows,
                             float* tile) {
  const int stride = tile_stride(view.dim), width = (view.dim + 7) / 8 * 8;
  bool bad = false;
  // A warp takes rows in turn: its lanes read neighbours.
  for (int row = static_cast<int>(threadIdx.x) / 32; row < rows; row += kWarps) {
    const T* from = row < valid ? view.at<T>(b, first + row, head) : nullptr;
#pragma unroll 4
    for (int i = static_cast<int>(threadIdx.x) % 32; i < width; i += 32) {
      const float value = from != nullptr && i < view.dim ? widen(from[i]) : 0.0F;
      tile[row * stride + i] = value;
      bad = bad || !isfinite(value);
    }
  }
  return bad;
}

/// Rows [first, first + valid) of a head become the first of `rows` rows of the tile, the others and what lies between
/// the dim and the next multiple of 8 become 0. Returns whether this thread met a NaN or an infinity.
__device__ inline bool load_rows(const DeviceView& view, std::int64_t b, int head, std::int64_t first, int valid,
                                 int rows, float* tile) {
  switch (view.dtype) {
    case DType::bf16: return load_rows_as<__nv_bfloat16>(view, b, head, first, valid, rows, tile);
    case DType::fp16: return load_rows_as<__half>(view, b, head, first, valid, rows, tile);
    case DType::fp32: break;
  }
  return load_rows_as<float>(view, b, head, first, valid, rows, tile);
}

/// c += a·b for an 8 × 4 and a 4 × 8 matrix: lane l holds a[l / 4][l % 4], b[l % 4][l / 4] and c[l / 4][l % 4 · 2 + 0,
/// 1].
__device__ inline void multiply(double (&c)[2], double a, double b) {
  asm("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0, %1}, {%2}, {%3}, {%0, %1};"
      : "+d"(c[0]), "+d"(c[1])
      : "d"(a), "d"(b));
}

struct Lane {
  int warp = static_cast<int>(threadIdx.x) / 32;
  int group, in_group;  ///< l / 4 and l % 4

  __device__ Lane() : group(static_cast<int>(threadIdx.x) % 32 / 4), in_group(static_cast<int>(threadIdx.x) % 4) {}
};

/// Eight warps make kRows × kKeys scores: warp `part` of them the block of 8 × 8 of that number, as sums over elements
/// [begin, end) of rows and keys; both are multiples of 4.
__device__ inline void score_block(const float* rows, const float* keys, int stride, int begin, int end, int part,
                                   double* scores) {
  const Lane lane;
  const int row = part / 2 * 8, key = part % 2 * 8;
  const float* a = rows + (row + lane.group) * stride + lane.in_group;
  const float* b = keys + (key + lane.group) * stride + lane.in_group;
  double even[2] = {}, odd[2] = {};  // two chains hide the latency of a step
  int k = begin;
#pragma unroll 4
  for (; k + 8 <= end; k += 8) {
    multiply(even, a[k], b[k]);
    multiply(odd, a[k + 4], b[k + 4]);
  }
  if (k < end) multiply(even, a[k], b[k]);
  double* to = scores + (row + lane.group) * kScoreStride + key + lane.in_group * 2;
  to[0] = even[0] + odd[0];
  to[1] = even[1] + odd[1];
}

/// Which outputs a thread owns: of the blocks of 8 × 8, all rows and the columns warp, warp + kWarps, … of them.
template <int kRowBlocks, int kColumns>
struct Accumulator {
  double at[kRowBlocks][kColumns][2] = {};

  /// Calls body(row of the tile, element, value) for what lies within `rows` and `dim`.
  template <class Body>
  __device__ void each(int rows, int dim, Body&& body) {
    const Lane lane;
#pragma unroll
    for (int r = 0; r < kRowBlocks; ++r) {
#pragma unroll
      for (int c = 0; c < kColumns; ++c) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const int row = r * 8 + lane.group, column = (lane.warp + c * kWarps) * 8 + lane.in_group * 2 + e;
          if (row < rows && column < dim) body(row, column, at[r][c][e]);
        }
      }
    }
  }
};

/// sum += A·B over kInner rows of B (`dim` wide). A is the tile of scores, or with kTransposed its transpose.
template <bool kTransposed, int kRowBlocks, int kColumns>
__device__ void accumulate(const double* scores, const float* b, int dim, Accumulator<kRowBlocks, kColumns>& sum) {
  constexpr int kInner = kTransposed ? kRows : kKeys;
  const Lane lane;
  const int stride = tile_stride(dim), blocks = (dim + 7) / 8;
#pragma unroll 1
  for (int k = 0; k < kInner; k += 4) {
    double a[kRowBlocks];
#pragma unroll
    for (int r = 0; r < kRowBlocks; ++r) {
      const int outer = r * 8 + lane.group, inner = k + lane.in_group;
      a[r] = kTransposed ? scores[inner * kScoreStride + outer] : scores[outer * kScoreStride + inner];
    }
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      const int block = lane.warp + c * kWarps;
      if (block >= blocks) break;  // the same for the whole warp
      const double value = b[(k + lane.in_group) * stride + block * 8 + lane.group];
#pragma unroll
      for (int r = 0; r < kRowBlocks; ++r) multiply(sum.at[r][c], a[r], value);
    }
  }
}

/// The same pair by pair, without those that are not visible: bit `key` of visible[row].
template <bool kTransposed, int kRowBlocks, int kColumns>
__device__ void accumulate_visible(const double* scores, const unsigned* visible, const float* b, int dim,
                                   Accumulator<kRowBlocks, kColumns>& sum) {
  constexpr int kInner = kTransposed ? kRows : kKeys;
  const int stride = tile_stride(dim);
  sum.each(kRowBlocks * 8, dim, [&](int outer, int column, double& value) {
#pragma unroll 1
    for (int inner = 0; inner < kInner; ++inner) {
      const int row = kTransposed ? inner : outer, key = kTransposed ? outer : inner;
      if ((visible[row] >> key & 1U) == 0) continue;
      value += scores[row * kScoreStride + key] * static_cast<double>(b[inner * stride + column]);
    }
  });
}

/// The keys [begin, end) of the slice that its row i sees; begin >= end where there are none.
struct KeyRange {
  std::int64_t begin, end;

  __device__ KeyRange(const Slice& slice, std::int64_t i) {
    const std::int64_t diagonal = slice.q_pos + i - slice.k_pos;
    begin = max(std::int64_t{0}, diagonal - clamp_edge(slice.left));
    end = min(slice.k_len, diagonal + clamp_edge(slice.right) + 1);
  }
};

/// The rows [begin, end) of the slice that see its key j.
struct RowRange {
  std::int64_t begin, end;

  __device__ RowRange(const Slice& slice, std::int64_t j) {
    const std::int64_t diagonal = slice.k_pos + j - slice.q_pos;
    begin = max(std::int64_t{0}, diagonal - clamp_edge(slice.right));
    end = min(slice.q_len, diagonal + clamp_edge(slice.left) + 1);
  }
};

/// Bit t: the slice's row i sees its key j + t; j may be negative. 0 for rows outside the slice.
__device__ inline unsigned visible_keys(const Slice& slice, std::int64_t i, std::int64_t j) {
  if (i < 0 || i >= slice.q_len) return 0;
  const KeyRange seen(slice, i);
  const std::int64_t begin = max(seen.begin - j, std::int64_t{0});
  const std::int64_t end = min(seen.end - j, std::int64_t{kKeys});
  return end > begin ? ((1U << end) - 1) & ~((1U << begin) - 1) : 0;
}

/// The tile's place among all tiles of a launch, heads fastest and the last tiles (the longest rows of a causal mask)
/// first.
struct TilePlace {
  std::int64_t first;  ///< row or key
  int head;
  std::int64_t batch;

  __device__ TilePlace(std::int64_t tiles, int heads, int size) {
    const std::int64_t n = blockIdx.x;
    head = static_cast<int>(n % heads);
    first = (tiles - 1 - n / heads % tiles) * size;
    batch = n / heads / tiles;
  }
};

/// Calls launch(std::integral_constant<int, n>) with the columns a warp needs for `dim`.
template <class Launch>
void dispatch_columns(std::int64_t dim, Launch&& launch) {
  if (dim <= 8 * kWarps) return launch(std::integral_constant<int, 1>{});
  if (dim <= 16 * kWarps) return launch(std::integral_constant<int, 2>{});
  ROTUNDA_CHECK(dim <= 32 * kWarps);
  return launch(std::integral_constant<int, 4>{});
}

/// Launches one block a tile with this much shared memory.
template <class Args>
void launch_tiles(void (*kernel)(Args), const Args& args, std::int64_t blocks, std::int64_t shared_bytes, Stream stream,
                  const char* name) {
  if (blocks == 0) return;
  ROTUNDA_CHECK(blocks <= 0x7fffffff);
  ROTUNDA_CUDA(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared_bytes)));
  kernel<<<static_cast<unsigned>(blocks), kThreads, static_cast<std::size_t>(shared_bytes), cuda::native(stream)>>>(
      args);
  cuda::check_launch(name);
}

}  // namespace rotunda::reference
