// Small operations on row statistics: fill_sink, sink_gradient, row_max.
#include <cooperative_groups.h>

#include <algorithm>
#include <limits>

#include "kernel/elementwise/cuda/operations.hpp"
#include "kernel/elementwise/cuda/row_tile.cuh"

namespace rotunda::cuda {
namespace {

namespace groups = cooperative_groups;

constexpr int kThreads = 256;
constexpr int kClusterBlocks = 8;  // that share a head: 16 heads fill a device
constexpr int kGradientThreads = 1024;
constexpr std::int64_t kMostBlocks = 1024;

using Rows = RowView<float, std::int64_t>;

/// A row's place in the list: blockIdx.x the span, blockIdx.y and the threads its rows.
__global__ void __launch_bounds__(kThreads)
    fill_sink_kernel(const Rows lse, const float* sink, std::int64_t sink_stride, int heads, const RowSpan* spans) {
  const RowSpan span = spans[blockIdx.x];
  for (std::int64_t i = std::int64_t{blockIdx.y} * kThreads + threadIdx.x; i < span.len;
       i += std::int64_t{gridDim.y} * kThreads) {
    for (int head = 0; head < heads; ++head) {
      lse.at(span.batch, span.begin + i, head) = sink == nullptr ? 0 : sink[head * sink_stride];
    }
  }
}

/// The block's sum of a number a thread, in thread 0; the order is fixed.
__device__ double block_sum(double value, double* shared) {
  shared[threadIdx.x] = value;
  for (int step = kGradientThreads / 2; step > 0; step /= 2) {
    __syncthreads();
    if (threadIdx.x < step) shared[threadIdx.x] += shared[threadIdx.x + step];
  }
  return shared[0];
}

/// exp(x) to an fp32 rounding or two: float64 would be what the sum waits for.
__device__ double exp_of(double x) {
  const auto high = static_cast<float>(x);
  const double low = x - static_cast<double>(high);
  return expf(high) * (1 + (low == low ? low : 0));  // infinities have no low part
}

// The blocks that share a head are a cluster. Devices before compute capability 9.0 have none: the first block does all.
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
#define ROTUNDA_CLUSTER __cluster_dims__(kClusterBlocks, 1, 1)
constexpr int kSharers = kClusterBlocks;

/// The sum of the sharers' totals, in thread 0 of the first; the order is fixed.
__device__ double sharers_sum(double total) {
  __shared__ double block_total;
  const groups::cluster_group cluster = groups::this_cluster();
  if (threadIdx.x == 0) block_total = total;
  cluster.sync();
  double all = 0;
  if (cluster.block_rank() == 0 && threadIdx.x == 0) {
    for (int block = 0; block < kSharers; ++block) all += *cluster.map_shared_rank(&block_total, block);
  }
  cluster.sync();  // a block's shared memory lives until it has been read
  return all;
}
#else
#define ROTUNDA_CLUSTER
constexpr int kSharers = 1;

__device__ double sharers_sum(double total) {
  return total;
}
#endif

/// dsink[head] = -Σ exp(sink - lse)·delta: a cluster a head, its blocks in turn take the rows of each span.
__global__ void ROTUNDA_CLUSTER __launch_bounds__(kGradientThreads)
    sink_gradient_kernel(const Rows lse, const Rows delta, const float* sink, std::int64_t sink_stride,
                         const RowSpan* spans, int count, float* dsink, std::int64_t dsink_stride) {
  __shared__ double shared[kGradientThreads];
  if (blockIdx.x >= kSharers) return;
  const int head = blockIdx.y;
  const double sink_value = sink == nullptr ? 0 : sink[head * sink_stride];
  const std::int64_t first = std::int64_t{blockIdx.x} * kGradientThreads + threadIdx.x;
  double sum = 0;
  const bool is_absent = sink_value == -std::numeric_limits<double>::infinity();  // what sees nothing has that lse too
  for (int n = 0; n < count && !is_absent; ++n) {
    const RowSpan span = spans[n];
#pragma unroll 4
    for (std::int64_t i = first; i < span.len; i += kSharers * kGradientThreads) {
      sum -= exp_of(sink_value - lse.at(span.batch, span.begin + i, head)) * delta.at(span.batch, span.begin + i, head);
    }
  }
  const double total = sharers_sum(block_sum(sum, shared));
  if (blockIdx.x == 0 && threadIdx.x == 0) dsink[head * dsink_stride] = static_cast<float>(total);
}

/// The greater one; NaN stays.
__device__ float greater(float a, float b) {
  return isnan(a) || a > b ? a : b;
}

/// A block a head.
__global__ void __launch_bounds__(kThreads)
    row_max_kernel(const Rows from, std::int64_t rows, float* to, std::int64_t to_stride) {
  __shared__ float shared[kThreads];
  float best = -HUGE_VALF;
  for (std::int64_t row = threadIdx.x; row < rows; row += kThreads) best = greater(best, from.at(0, row, blockIdx.x));
  shared[threadIdx.x] = best;
  for (int step = kThreads / 2; step > 0; step /= 2) {
    __syncthreads();
    if (threadIdx.x < step) shared[threadIdx.x] = greater(shared[threadIdx.x], shared[threadIdx.x + step]);
  }
  if (threadIdx.x == 0) to[blockIdx.x * to_stride] = shared[0];
}

}  // namespace

void fill_sink(const TensorView& lse, const TensorView& sink, const RowList& rows, Stream stream) {
  std::int64_t longest = 0;
  for (const RowSpan& span : rows.rows) longest = std::max(longest, span.len);
  if (lse.empty() || longest == 0) return;
  ROTUNDA_CHECK(rows.device != nullptr);
  const dim3 grid(static_cast<unsigned>(rows.rows.size()),
                  static_cast<unsigned>(std::min(kMostBlocks, (longest + kThreads - 1) / kThreads)));
  fill_sink_kernel<<<grid, kThreads, 0, native(stream)>>>(Rows(lse), static_cast<const float*>(sink.data),
                                                          sink.stride[2], static_cast<int>(lse.heads()), rows.device);
  check_launch("fill_sink");
}

void sink_gradient(const TensorView& lse, const TensorView& delta, const TensorView& sink, const RowList& rows,
                   const TensorView& dsink, Stream stream) {
  if (lse.heads() == 0) return;
  ROTUNDA_CHECK(rows.rows.empty() || rows.device != nullptr);
  ROTUNDA_CHECK(lse.heads() <= 65535);
  const dim3 grid(kClusterBlocks, static_cast<unsigned>(lse.heads()));
  sink_gradient_kernel<<<grid, kGradientThreads, 0, native(stream)>>>(
      Rows(lse), Rows(delta), static_cast<const float*>(sink.data), sink.stride[2], rows.device,
      static_cast<int>(rows.rows.size()), static_cast<float*>(dsink.data), dsink.stride[2]);
  check_launch("sink_gradient");
}

void row_max(const TensorView& from, const TensorView& to, Stream stream) {
  if (to.heads() == 0) return;
  row_max_kernel<<<static_cast<unsigned>(to.heads()), kThreads, 0, native(stream)>>>(
      Rows(from), from.rows(), static_cast<float*>(to.data), to.stride[2]);
  check_launch("row_max");
}

}  // namespace rotunda::cuda
