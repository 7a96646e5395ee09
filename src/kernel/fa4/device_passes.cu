#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <cmath>

#include "base/cuda/check.hpp"
#include "kernel/fa4/device_passes.hpp"

namespace rotunda::fa4 {
namespace {

constexpr int kMostValues = 960;  // with the rest, within the 4 KiB of parameters that every device takes
constexpr int kThreads = 256;

struct Values {
  int count;
  std::int32_t value[kMostValues];
};

__global__ void write_values(std::int32_t* to, const __grid_constant__ Values values) {
  for (int i = static_cast<int>(threadIdx.x); i < values.count; i += static_cast<int>(blockDim.x)) {
    to[i] = values.value[i];
  }
}

/// The last of `count` ascending numbers that is at most `value`; the first is.
__device__ int last_at_most(const std::int32_t* numbers, int count, std::int64_t value) {
  int low = 0, high = count;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (numbers[middle] <= value ? low : high) = middle;
  }
  return low;
}

/// No piece is without a block.
__global__ void write_owners(const std::int32_t* blocks_before, int pieces, int blocks, std::int32_t* owners) {
  const int block = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (block < blocks) owners[block] = last_at_most(blocks_before, pieces, block);
}

/// A segment table's columns.
struct Columns {
  const std::int32_t *batch, *begin, *len, *sum;
  int count;
};

Columns columns(const SegmentList& list) {
  return {list.table, list.table + list.count, list.table + 2 * list.count, list.table + 3 * list.count, list.count};
}

struct Strides {
  std::int64_t batch, row, head;
};

Strides strides(const TensorView& view) {
  return {view.stride[0], view.stride[1], view.stride[2]};
}

__global__ void gather(const float* lse, Strides of_lse, const float* delta, Strides of_delta, Columns segments,
                       std::int64_t rows, float* lse_log2, float* gathered_delta) {
  constexpr float kLog2E = 1.4426950408889634F;
  const std::int64_t sum = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x, head = blockIdx.y;
  if (sum >= rows) return;
  const int segment = last_at_most(segments.sum, segments.count, sum);
  const std::int64_t i = sum - segments.sum[segment];
  float own_lse = 0, own_delta = 0;
  if (i < segments.len[segment]) {
    const std::int64_t batch = segments.batch[segment], row = segments.begin[segment] + i;
    own_lse = lse[batch * of_lse.batch + row * of_lse.row + head * of_lse.head];
    own_delta = delta[batch * of_delta.batch + row * of_delta.row + head * of_delta.head];
  }
  const bool nothing = own_lse == -INFINITY;  // exp2(-inf + inf) would be NaN
  lse_log2[head * rows + sum] = nothing ? 0 : own_lse * kLog2E;
  gathered_delta[head * rows + sum] = nothing ? 0 : own_delta;
}

template <class T>
__device__ T convert(float value) {
  if constexpr (std::is_same_v<T, __nv_bfloat16>) return __float2bfloat16(value);
  if constexpr (std::is_same_v<T, __half>) return __float2half(value);
  if constexpr (std::is_same_v<T, float>) return value;
}

/// Where the rows of a tile go.
template <class T>
struct TileTarget {
  T* data;
  std::int64_t row_stride;
  float scale;
  bool add;
  int rows, width;

  /// `count` numbers of a row, 2 of them at an even column. Widths are even.
  template <int count>
  __device__ void put(int row, int column, float2 value) const {
    if (row >= rows || column >= width) return;
    T* at = data + row * row_stride + column;
    value = {value.x * scale, value.y * scale};
    if constexpr (count == 1) {
      if constexpr (std::is_same_v<T, float>) value.x += add ? *at : 0;
      *at = convert<T>(value.x);
    } else {
      struct alignas(2 * sizeof(T)) Pair {
        T x, y;
      };
      auto* pair = reinterpret_cast<Pair*>(at);
      if constexpr (std::is_same_v<T, float>) {
        if (add) value = {value.x + pair->x, value.y + pair->y};
      }
      *pair = {convert<T>(value.x), convert<T>(value.y)};
    }
  }
};

/// One tile of one head, with the warp groups and threads that made it: four numbers of a thread's fragment are two rows
/// of the product by two columns.
template <class T>
__global__ void place(const float* sums, SumTile tile, int width, Columns segments, std::int64_t end,
                      TileTarget<T> target, Strides of_target) {
  const std::int64_t first = std::int64_t{blockIdx.x} * tile.rows, head = blockIdx.y;
  const int segment = last_at_most(segments.sum, segments.count, first);
  const auto offset = static_cast<int>(first - segments.sum[segment]);
  target.rows = segments.len[segment] - offset;
  target.data += segments.batch[segment] * of_target.batch + head * of_target.head +
                 (std::int64_t{segments.begin[segment]} + offset) * of_target.row;
  const bool empty = segments.sum[segment] >= end;
  const auto group = static_cast<int>(threadIdx.x / 128), thread = static_cast<int>(threadIdx.x % 128);
  const int groups = tile.row_groups * tile.column_groups, fours = tile.rows * width / groups / 4 / 128;
  const auto* from = reinterpret_cast<const float4*>(sums + (head * end + first) * width) + group * fours * 128 + thread;
  const int columns = (tile.turned ? tile.rows : width) / tile.column_groups;  // of a warp group
  int row = group % tile.row_groups * 64 + thread / 32 * 16 + thread % 32 / 4;
  const int first_column = group / tile.row_groups * columns + thread % 4 * 2;
  for (int i = 0; i < fours; row += 64 * tile.row_groups) {
#pragma unroll 4
    for (int column = first_column; column < first_column + columns; column += 8, ++i) {
      const float4 x = empty ? float4{} : from[i * 128];
      if (tile.turned) {
        target.template put<1>(column, row, {x.x, 0});
        target.template put<1>(column + 1, row, {x.y, 0});
        target.template put<1>(column, row + 8, {x.z, 0});
        target.template put<1>(column + 1, row + 8, {x.w, 0});
      } else {
        target.template put<2>(row, column, {x.x, x.y});
        target.template put<2>(row + 8, column, {x.z, x.w});
      }
    }
  }
}

template <class T>
void place_as(const float* sums, const SumTile& tile, int width, const SegmentList& segments, std::int64_t end,
              const SumTarget& to, Stream stream) {
  const TensorView& view = to.view;
  const TileTarget<T> target = {static_cast<T*>(view.data), view.stride[1], to.scale, to.add, 0,
                                static_cast<int>(view.dim())};
  const dim3 grid(static_cast<unsigned>(segments.rows / tile.rows), static_cast<unsigned>(view.heads()));
  const auto threads = static_cast<unsigned>(128 * tile.row_groups * tile.column_groups);
  place<T><<<grid, threads, 0, cuda::native(stream)>>>(sums, tile, width, columns(segments), end, target,
                                                       strides(view));
  cuda::check_launch("fa4 place_sums");
}

}  // namespace

void write(std::span<const std::int32_t> values, std::int32_t* to, Stream stream) {
  for (std::size_t begin = 0; begin < values.size(); begin += kMostValues) {
    Values part;
    part.count = static_cast<int>(std::min<std::size_t>(kMostValues, values.size() - begin));
    std::copy_n(values.begin() + static_cast<std::ptrdiff_t>(begin), part.count, part.value);
    write_values<<<1, kThreads, 0, cuda::native(stream)>>>(to + begin, part);
    cuda::check_launch("fa4 write_values");
  }
}

void write(const Tables& tables, std::int32_t* to, Stream stream) {
  write(tables.values, to, stream);
  if (tables.blocks == 0) return;
  const LaunchTables at = tables.at(to);
  const unsigned grid = static_cast<unsigned>((tables.blocks + kThreads - 1) / kThreads);
  write_owners<<<grid, kThreads, 0, cuda::native(stream)>>>(static_cast<const std::int32_t*>(at.blocks_before.data),
                                                            tables.pieces, tables.blocks,
                                                            static_cast<std::int32_t*>(at.block_owner.data));
  cuda::check_launch("fa4 write_owners");
}

void gather_statistics(const TensorView& lse, const TensorView& delta, const SegmentList& segments, float* lse_log2,
                       float* gathered_delta, Stream stream) {
  if (segments.rows == 0 || lse.heads() == 0) return;
  const dim3 grid(static_cast<unsigned>((segments.rows + kThreads - 1) / kThreads),
                  static_cast<unsigned>(lse.heads()));
  gather<<<grid, kThreads, 0, cuda::native(stream)>>>(static_cast<const float*>(lse.data), strides(lse),
                                                      static_cast<const float*>(delta.data), strides(delta),
                                                      columns(segments), segments.rows, lse_log2, gathered_delta);
  cuda::check_launch("fa4 gather_statistics");
}

void place_sums(const float* sums, const SumTile& tile, int width, const SegmentList& segments, std::int64_t end,
                const SumTarget& target, Stream stream) {
  if (segments.rows == 0 || target.view.empty()) return;
  switch (target.view.dtype) {
    case DType::fp32: return place_as<float>(sums, tile, width, segments, end, target, stream);
    case DType::bf16: return place_as<__nv_bfloat16>(sums, tile, width, segments, end, target, stream);
    case DType::fp16: return place_as<__half>(sums, tile, width, segments, end, target, stream);
  }
}

}  // namespace rotunda::fa4
