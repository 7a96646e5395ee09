// finish_with_sink: the final rows with the sink's share taken out.
#include <cmath>
#include <cstddef>

#include "kernel/elementwise/cuda/operations.hpp"
#include "kernel/elementwise/cuda/row_tile.cuh"

namespace rotunda::cuda {
namespace {

template <class T>
using Rows = RowView<T, std::int64_t>;

template <class To>
struct FinishArgs {
  Rows<const float> acc;
  Rows<float> lse, low;
  Rows<To> out;
  Rows<const float> sink;
  Rows<const std::byte> number;  ///< without memory: its offsets are batch·rows + row
  const RowSpan* spans;
  int span_count;
  std::int64_t rows;  ///< of a batch entry
};

/// Whether the lane has a pair and its row, number batch·rows + row, lies in a span. A lane a span: the warp's pairs
/// are few.
__device__ bool is_listed(const RowSpan* spans, int count, std::int64_t rows, std::int64_t number,
                          const WarpShare& share) {
  unsigned listed = 0;  // bit i: pair i
  for (int first = 0; first < count; first += kWarp) {
    const bool exists = first + share.lane < count;
    const RowSpan span = exists ? spans[first + share.lane] : RowSpan{};
    const std::int64_t begin = span.batch * rows + span.begin, end = begin + span.len;
    for (int pair = 0; pair < share.lanes; ++pair) {
      const std::int64_t at = __shfl_sync(kAllLanes, number, pair);
      if (at >= begin && at < end) listed |= 1U << pair;
    }
  }
  return (__reduce_or_sync(kAllLanes, listed) >> share.lane & 1U) != 0 && share.has_pair;
}

/// Bytes: acc read, out written, each once. A pair's lse belongs to one lane.
template <int V, class To>
__global__ void __launch_bounds__(kPairThreads, 8)
    finish_kernel(const __grid_constant__ FinishArgs<To> args, const __grid_constant__ WarpPairs pairs) {
  const WarpShare share(pairs);
  if (share.lanes == 0) return;
  const auto [b, row, head] = share.place;
  const std::int64_t own_acc = args.acc.offset(b, row, head), own_out = args.out.offset(b, row, head);
  float own_factor = 1;
  walk_vectors<V, vectors_in_flight(V * sizeof(float))>(
      pairs, share,
      [&](int pair, int element) { return load_vector<V>(args.acc.data + of_lane(own_acc, pair) + element); },
      [&] {
        const std::int64_t number = args.number.offset(b, row, head);
        if (!is_listed(args.spans, args.span_count, args.rows, number, share)) return;
        const double without = load_lse(args.lse, args.low, b, row, head);
        const double sink = args.sink.data == nullptr ? 0 : args.sink.at(b, row, head);
        const double with_sink = log_add(without, sink);
        const double loss = without == -HUGE_VAL ? without : without - with_sink;  // the sink may be NaN
        if (without != with_sink) own_factor = static_cast<float>(exp(loss));      // not equal infinities
        args.lse.at(b, row, head) = static_cast<float>(with_sink);
      },
      [&](bool exists, int pair, int element, const Vector<float, V>& loaded) {
        const float factor = __shfl_sync(kAllLanes, own_factor, pair);
        To* const out = args.out.data + of_lane(own_out, pair) + element;
        Vector<To, V> result;
#pragma unroll
        for (int i = 0; i < V; ++i) result.at[i] = narrow<To>(loaded.at[i] * factor);
        if (exists) store_vector(result, out);
      });
}

/// A view of nothing by batch entry, row and head.
TensorView with_strides(std::int64_t batch, std::int64_t row, std::int64_t head, void* data) {
  TensorView view;
  view.data = data;
  view.stride = {batch, row, head, 1};
  return view;
}

template <int V, class To>
void launch(const RowState& state, const TensorView& out, const TensorView& sink, const RowList& rows, Stream stream) {
  const MemoryOrder order(out);
  const FinishArgs<To> args{.acc = order.rows<const float>(state.acc),
                            .lse = order.rows<float>(state.lse),
                            .low = order.rows<float>(state.lse_low),
                            .out = order.rows<To>(out),
                            .sink = order.rows<const float>(with_strides(0, 0, sink.stride[2], sink.data)),
                            .number = order.rows<const std::byte>(with_strides(state.lse.rows(), 1, 0, nullptr)),
                            .spans = rows.device,
                            .span_count = static_cast<int>(rows.rows.size()),
                            .rows = state.lse.rows()};
  const WarpPairs pairs(order.permute(state.lse), out.dim(), V);
  finish_kernel<V, To><<<pairs.blocks(), kPairThreads, 0, native(stream)>>>(args, pairs);
  check_launch("finish_with_sink");
}

}  // namespace

void finish_with_sink(const RowState& state, const TensorView& out, const TensorView& sink, const RowList& rows,
                      Stream stream) {
  if (state.lse.empty()) return;
  ROTUNDA_CHECK(rows.rows.empty() || rows.device != nullptr);
  ROTUNDA_CHECK(out.dim() <= 1 || (out.stride[3] == 1 && state.acc.stride[3] == 1));
  dispatch_device(out.dtype, [&](auto element) {
    using To = decltype(element);
    constexpr int kVector = kVectorOf<float, To>;
    if (takes_vectors(out, kVector) && takes_vectors(state.acc, kVector)) {
      launch<kVector, To>(state, out, sink, rows, stream);
    } else {
      launch<1, To>(state, out, sink, rows, stream);
    }
  });
}

}  // namespace rotunda::cuda
