// Small operations on row statistics: fill_sink, sink_gradient, row_max.
#include <cooperative_groups.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>
#include <type_traits>

#include "kernel/cuda/contract.cuh"
#include "kernel/elementwise/cuda/operations.hpp"
#include "kernel/elementwise/cuda/row_tile.cuh"

namespace rotunda::cuda {
namespace {

namespace groups = cooperative_groups;

constexpr int kThreads = 256;
constexpr int kFour = 4;               // rows that a thread takes together: 16 bytes
constexpr int kClusterBlocks = 8;      // that share a head: 16 heads fill a device
constexpr int kGradientThreads = 512;  // two blocks fit a multiprocessor, so that all clusters are there at once
constexpr std::int64_t kMostBlocks = 1024, kMostHeads = 65535;  // of a grid's y and z

using Rows = RowView<float, std::int64_t>;

/// blockIdx.x is the span, z the head; y and the threads share its rows, four at a time. Bytes: 4 a row and head.
__global__ void __launch_bounds__(kThreads)
    fill_sink_kernel(const Rows lse, const float* sink, std::int64_t sink_stride, const RowSpan* spans) {
  const RowSpan span = spans[blockIdx.x];
  const float value = sink == nullptr ? 0 : sink[blockIdx.z * sink_stride];
  float* const to = &lse.at(span.batch, span.begin, blockIdx.z);
  // Where rows are neighbours, four begin at each 16 aligned bytes, the first of them up to three rows early.
  const bool dense = lse.row == 1;
  const auto early = static_cast<int>(dense ? reinterpret_cast<std::uintptr_t>(to) / sizeof(float) % kFour : 0);
  float* const aligned = to - early;
  for (std::int64_t at = (std::int64_t{blockIdx.y} * kThreads + threadIdx.x) * kFour; at < span.len + early;
       at += std::int64_t{gridDim.y} * kThreads * kFour) {
    if (dense && at >= early && at + kFour <= span.len + early) {
      // The compiler would make four stores of an assignment.
      __stwb(reinterpret_cast<float4*>(aligned + at), make_float4(value, value, value, value));
      continue;
    }
#pragma unroll 1
    for (std::int64_t i = max(at - early, std::int64_t{0}); i < min(at - early + kFour, span.len); ++i) {
      to[i * lse.row] = value;
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

/// exp(a) / exp(whole), also where both are the same infinity. In fp32: the difference loses no more than whole, which
/// is a log-sum-exp rounded to fp32, has lost already; float64 would be what the sum waits for.
__device__ float share(float a, float whole) {
  return expf(a == whole ? 0 : a - whole);
}

/// The next four rows: all exist (kWhole), or `left` do and the others are `none`.
template <bool kVectors, bool kWhole>
__device__ Vector<float, kFour> load_rows(const float* from, std::int64_t stride, std::int64_t left, float none) {
  if (kVectors && (kWhole || left >= kFour)) return load_vector<kFour>(from);
  Vector<float, kFour> rows;
#pragma unroll
  for (int i = 0; i < kFour; ++i) rows.at[i] = kWhole || i < left ? from[i * stride] : none;
  return rows;
}

// The blocks that share a head are a cluster. Devices before compute capability 9.0 have none: the first block does
// all.
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

/// Σ exp(sink - lse)·delta over four rows, in fp32.
__device__ float weigh(float sink, const Vector<float, kFour>& lse, const Vector<float, kFour>& delta) {
  float term[kFour];
#pragma unroll
  for (int i = 0; i < kFour; ++i) term[i] = share(sink, lse.at[i]) * delta.at[i];
  return (term[0] + term[1]) + (term[2] + term[3]);
}

struct GradientArgs {
  Rows lse, delta;
  const float* sink;
  std::int64_t sink_stride;
  const RowSpan* spans;
  int span_count;
  float* dsink;
  std::int64_t dsink_stride;
};

/// dsink[head] = -Σ exp(sink - lse)·delta: a cluster a head, its threads in turn take four rows of each span. Bytes: 8
/// a row and head. The order of the sum does not depend on kVectors, that is on where rows lie.
template <bool kVectors>
__global__ void ROTUNDA_CLUSTER __launch_bounds__(kGradientThreads) sink_gradient_kernel(const GradientArgs args) {
  __shared__ double shared[kGradientThreads];
  if (blockIdx.x >= kSharers) return;
  const int head = blockIdx.y;
  const float sink = args.sink == nullptr ? 0 : args.sink[head * args.sink_stride];
  constexpr int kTurns = kVectors ? 4 : 2;                                           // in flight
  constexpr std::int64_t kTurn = std::int64_t{kSharers} * kGradientThreads * kFour;  // rows
  const std::int64_t first = (std::int64_t{blockIdx.x} * kGradientThreads + threadIdx.x) * kFour;
  double sum = 0;
  const bool is_absent = sink == -HUGE_VALF;  // what sees nothing has that lse too
  for (int n = 0; n < args.span_count && !is_absent; ++n) {
    const RowSpan span = args.spans[n];
    const float* const lse = &args.lse.at(span.batch, span.begin, head);
    const float* const delta = &args.delta.at(span.batch, span.begin, head);
    const auto add = [&](auto whole, std::int64_t row) {
      constexpr bool kWhole = decltype(whole)::value;
      Vector<float, kFour> its_lse[kTurns], its_delta[kTurns];
#pragma unroll
      for (int u = 0; u < kTurns; ++u) {
        const std::int64_t at = row + u * kTurn, left = span.len - at;
        // A weight of 0 for what doesn't exist.
        its_lse[u] = load_rows<kVectors, kWhole>(lse + at * args.lse.row, args.lse.row, left, HUGE_VALF);
        its_delta[u] = load_rows<kVectors, kWhole>(delta + at * args.delta.row, args.delta.row, left, 0);
      }
#pragma unroll
      for (int u = 0; u < kTurns; ++u) sum -= weigh(sink, its_lse[u], its_delta[u]);
    };
    std::int64_t row = first;
    for (; row + (kTurns - 1) * kTurn + kFour <= span.len; row += kTurns * kTurn) add(std::true_type{}, row);
    if (row < span.len) add(std::false_type{}, row);
  }
  const double total = sharers_sum(block_sum(sum, shared));
  if (blockIdx.x == 0 && threadIdx.x == 0) args.dsink[head * args.dsink_stride] = static_cast<float>(total);
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

/// Whether the rows of every span lie side by side, each four of them from its begin on in 16 aligned bytes.
bool takes_fours(const TensorView& view, std::span<const RowSpan> spans) {
  const auto is_aligned = [](std::int64_t elements) { return elements % kFour == 0; };
  return view.stride[1] == 1 && reinterpret_cast<std::uintptr_t>(view.data) % (kFour * sizeof(float)) == 0 &&
         (view.batch() == 1 || is_aligned(view.stride[0])) && (view.heads() == 1 || is_aligned(view.stride[2])) &&
         std::all_of(spans.begin(), spans.end(), [&](const RowSpan& span) { return is_aligned(span.begin); });
}

}  // namespace

void fill_sink(const TensorView& lse, const TensorView& sink, const RowList& rows, Stream stream) {
  std::int64_t longest = 0;
  for (const RowSpan& span : rows.rows) longest = std::max(longest, span.len);
  if (lse.empty() || longest == 0) return;
  ROTUNDA_CHECK(rows.device != nullptr);
  ROTUNDA_CHECK(lse.heads() <= kMostHeads);
  const std::int64_t blocks = longest / (kThreads * kFour) + 1;  // one row more than a multiple may begin early
  const dim3 grid(static_cast<unsigned>(rows.rows.size()), static_cast<unsigned>(std::min(kMostBlocks, blocks)),
                  static_cast<unsigned>(lse.heads()));
  fill_sink_kernel<<<grid, kThreads, 0, native(stream)>>>(Rows(lse), static_cast<const float*>(sink.data),
                                                          sink.stride[2], rows.device);
  check_launch("fill_sink");
}

void sink_gradient(const TensorView& lse, const TensorView& delta, const TensorView& sink, const RowList& rows,
                   const TensorView& dsink, Stream stream) {
  if (lse.heads() == 0) return;
  ROTUNDA_CHECK(rows.rows.empty() || rows.device != nullptr);
  ROTUNDA_CHECK(lse.heads() <= kMostHeads);
  const GradientArgs args{.lse = Rows(lse),
                          .delta = Rows(delta),
                          .sink = static_cast<const float*>(sink.data),
                          .sink_stride = sink.stride[2],
                          .spans = rows.device,
                          .span_count = static_cast<int>(rows.rows.size()),
                          .dsink = static_cast<float*>(dsink.data),
                          .dsink_stride = dsink.stride[2]};
  const bool vectors = takes_fours(lse, rows.rows) && takes_fours(delta, rows.rows);
  const auto kernel = vectors ? sink_gradient_kernel<true> : sink_gradient_kernel<false>;
  const dim3 grid(kClusterBlocks, static_cast<unsigned>(lse.heads()));
  kernel<<<grid, kGradientThreads, 0, native(stream)>>>(args);
  check_launch("sink_gradient");
}

void row_max(const TensorView& from, const TensorView& to, Stream stream) {
  if (to.heads() == 0) return;
  row_max_kernel<<<static_cast<unsigned>(to.heads()), kThreads, 0, native(stream)>>>(
      Rows(from), from.rows(), static_cast<float*>(to.data), to.stride[2]);
  check_launch("row_max");
}

}  // namespace rotunda::cuda
