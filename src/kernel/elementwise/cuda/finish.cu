// finish_with_sink: the final rows with the sink's share taken out.
#include "kernel/elementwise/cuda/operations.hpp"
#include "kernel/elementwise/cuda/row_tile.cuh"

namespace rotunda::cuda {
namespace {

template <class To, class Index>
struct FinishArgs {
  RowView<const float, Index> acc;
  RowView<float, Index> lse, low;
  RowView<To, Index> out;
  const float* sink;
  Index sink_stride;
  const RowSpan* spans;
  int span_count;
  std::int64_t rows;  ///< of a batch entry
  int dim;
};

/// listed[i] = whether row number first + i, batch entries one after the other, lies in a span.
__device__ void mark_listed(const RowSpan* spans, int count, std::int64_t rows, std::int64_t first, bool* listed) {
  for (int i = threadIdx.x; i < kPairs; i += kRowThreads) listed[i] = false;
  __syncthreads();
  for (int i = threadIdx.x; i < count; i += kRowThreads) {
    const RowSpan span = spans[i];
    const std::int64_t begin = span.batch * rows + span.begin - first;
    const std::int64_t end = begin + span.len;
    // Threads of overlapping spans write the same value.
    for (std::int64_t row = begin > 0 ? begin : 0; row < end && row < kPairs; ++row) listed[row] = true;
  }
  __syncthreads();
}

/// Bytes: acc read, out written, each once. A pair's lse is read and written by its block alone.
template <int V, class To, class Index>
__global__ void __launch_bounds__(kRowThreads)
    finish_kernel(const FinishArgs<To, Index> args, const PairPlaces<Index> places) {
  __shared__ float factor[kPairs];
  __shared__ Index from[kPairs], to[kPairs];
  __shared__ bool listed[kPairs];
  const Index first = static_cast<Index>(blockIdx.x) * kPairs;
  const int pairs = static_cast<int>(places.count - first < kPairs ? places.count - first : kPairs);
  const Index first_row = places.heads.quotient(first);
  mark_listed(args.spans, args.span_count, args.rows, static_cast<std::int64_t>(first_row), listed);
  if (threadIdx.x < pairs) {
    const auto [b, row, head, flat_row] = places.find(first + threadIdx.x);
    float weight = 1;
    if (listed[flat_row - first_row]) {
      const double without = load_lse(args.lse, args.low, b, row, head);
      const double sink = args.sink == nullptr ? 0 : args.sink[head * args.sink_stride];
      const double with_sink = log_add(without, sink);
      weight = without == with_sink ? 1 : static_cast<float>(exp(without - with_sink));  // equal infinities too
      args.lse.at(b, row, head) = static_cast<float>(with_sink);
    }
    factor[threadIdx.x] = weight;
    from[threadIdx.x] = args.acc.offset(b, row, head);
    to[threadIdx.x] = args.out.offset(b, row, head);
  }
  __syncthreads();
  walk_vectors<V>(
      pairs, args.dim, [&](int pair, int element) { return load_vector<V>(args.acc.data + from[pair] + element); },
      [&](int pair, int element, const Vector<float, V>& loaded) {
        Vector<To, V> result;
#pragma unroll
        for (int i = 0; i < V; ++i) result.at[i] = narrow<To>(loaded.at[i] * factor[pair]);
        store_vector(result, args.out.data + to[pair] + element);
      });
}

template <int V, class To, class Index>
void launch(const RowState& state, const TensorView& out, const TensorView& sink, const RowList& rows, Stream stream) {
  const FinishArgs<To, Index> args{.acc = RowView<const float, Index>(state.acc),
                                   .lse = RowView<float, Index>(state.lse),
                                   .low = RowView<float, Index>(state.lse_low),
                                   .out = RowView<To, Index>(out),
                                   .sink = static_cast<const float*>(sink.data),
                                   .sink_stride = static_cast<Index>(sink.stride[2]),
                                   .spans = rows.device,
                                   .span_count = static_cast<int>(rows.rows.size()),
                                   .rows = state.lse.rows(),
                                   .dim = static_cast<int>(out.dim())};
  const PairPlaces<Index> places(state.lse);
  finish_kernel<V, To, Index><<<places.blocks(), kRowThreads, 0, native(stream)>>>(args, places);
  check_launch("finish_with_sink");
}

}  // namespace

void finish_with_sink(const RowState& state, const TensorView& out, const TensorView& sink, const RowList& rows,
                      IndexWidth width, Stream stream) {
  if (state.lse.empty()) return;
  ROTUNDA_CHECK(rows.rows.empty() || rows.device != nullptr);
  ROTUNDA_CHECK(out.dim() <= 1 || (out.stride[3] == 1 && state.acc.stride[3] == 1));
  const bool narrow = is_narrow(width, {state.acc, state.lse, state.lse_low, out});
  dispatch_device(out.dtype, [&](auto element) {
    using To = decltype(element);
    constexpr int kVector = kVectorOf<float, To>;
    dispatch_width(narrow, [&](auto index) {
      if (takes_vectors(out, kVector) && takes_vectors(state.acc, kVector)) {
        launch<kVector, To, decltype(index)>(state, out, sink, rows, stream);
      } else {
        launch<1, To, decltype(index)>(state, out, sink, rows, stream);
      }
    });
  });
}

}  // namespace rotunda::cuda
