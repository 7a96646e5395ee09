// row_dot: delta = rowsum(out ∘ dout), in fp32, for each row in an order that depends on the dim alone, not on strides.
#include "kernel/elementwise/cuda/operations.hpp"
#include "kernel/elementwise/cuda/row_tile.cuh"

namespace rotunda::cuda {
namespace {

constexpr int kRowThreads = 256;
constexpr int kRowsInFlight = 4;  // of a group of lanes: eight independent loads a thread

template <class T, class Index>
struct DotArgs {
  RowView<const T, Index> out, dout;
  RowView<float, Index> delta;
  int dim;
};

/// V elements from `from`, of which `left` exist; the others are 0.
template <int V, bool kAligned, class T>
__device__ Vector<T, V> load_piece(const T* from, int left) {
  if constexpr (kAligned) return load_vector<V>(from);
  Vector<T, V> piece{};
#pragma unroll
  for (int i = 0; i < V; ++i) {
    if (i < left) piece.at[i] = from[i];
  }
  return piece;
}

/// kLanes neighbouring lanes share kRowsInFlight rows: V elements a lane and turn, then a butterfly.
template <int V, int kLanes, bool kAligned, class T, class Index>
__global__ void __launch_bounds__(kRowThreads)
    row_dot_kernel(const DotArgs<T, Index> args, const PairPlaces<Index> places) {
  constexpr int kGroups = kRowThreads / kLanes;
  const int lane = threadIdx.x % kLanes;
  const Index first = static_cast<Index>(blockIdx.x) * (kGroups * kRowsInFlight) + threadIdx.x / kLanes;
  float sum[kRowsInFlight] = {};
  Index out[kRowsInFlight], dout[kRowsInFlight], delta[kRowsInFlight];
#pragma unroll
  for (int u = 0; u < kRowsInFlight; ++u) {
    // Groups beyond the end repeat the last row and don't store: every lane takes part in the butterfly.
    const Index pair = first + u * kGroups;
    const auto [b, row, head] = places.find(pair < places.count ? pair : places.count - 1);
    out[u] = args.out.offset(b, row, head);
    dout[u] = args.dout.offset(b, row, head);
    delta[u] = args.delta.offset(b, row, head);
  }
  for (int at = lane * V; at < args.dim; at += kLanes * V) {
    Vector<T, V> x[kRowsInFlight], y[kRowsInFlight];
#pragma unroll
    for (int u = 0; u < kRowsInFlight; ++u) {
      x[u] = load_piece<V, kAligned>(args.out.data + out[u] + at, args.dim - at);
      y[u] = load_piece<V, kAligned>(args.dout.data + dout[u] + at, args.dim - at);
    }
#pragma unroll
    for (int u = 0; u < kRowsInFlight; ++u) {
#pragma unroll
      for (int i = 0; i < V; ++i) sum[u] = fmaf(widen(x[u].at[i]), widen(y[u].at[i]), sum[u]);
    }
  }
#pragma unroll
  for (int u = 0; u < kRowsInFlight; ++u) {
#pragma unroll
    for (int step = kLanes / 2; step > 0; step /= 2) sum[u] += __shfl_xor_sync(0xffffffffU, sum[u], step);
    if (lane == 0 && first + u * kGroups < places.count) args.delta.data[delta[u]] = sum[u];
  }
}

template <int V, int kLanes, bool kAligned, class T, class Index>
void launch(const TensorView& out, const TensorView& dout, const TensorView& delta, Stream stream) {
  const DotArgs<T, Index> args{RowView<const T, Index>(out), RowView<const T, Index>(dout),
                               RowView<float, Index>(delta), static_cast<int>(out.dim())};
  const PairPlaces<Index> places(delta);
  constexpr std::int64_t kBlock = kRowThreads / kLanes * kRowsInFlight;
  const auto blocks = static_cast<unsigned>((static_cast<std::int64_t>(places.count) + kBlock - 1) / kBlock);
  row_dot_kernel<V, kLanes, kAligned, T, Index><<<blocks, kRowThreads, 0, native(stream)>>>(args, places);
  check_launch("row_dot");
}

}  // namespace

void row_dot(const TensorView& out, const TensorView& dout, const TensorView& delta, IndexWidth width, Stream stream) {
  if (delta.empty()) return;
  ROTUNDA_CHECK(out.dtype == dout.dtype);
  ROTUNDA_CHECK(out.dim() <= 1 || (out.stride[3] == 1 && dout.stride[3] == 1));
  const bool narrow = is_narrow(width, {out, dout, delta});
  dispatch_device(out.dtype, [&](auto element) {
    using T = decltype(element);
    constexpr int kVector = kVectorOf<T>;
    const bool aligned = takes_vectors(out, kVector) && takes_vectors(dout, kVector);
    const auto run = [&]<int kLanes>() {
      dispatch_width(narrow, [&](auto index) {
        using Index = decltype(index);
        if (aligned) {
          launch<kVector, kLanes, true, T, Index>(out, dout, delta, stream);
        } else {
          launch<kVector, kLanes, false, T, Index>(out, dout, delta, stream);
        }
      });
    };
    if (out.dim() > 16 * kVector) {
      run.template operator()<32>();
    } else if (out.dim() > 8 * kVector) {
      run.template operator()<16>();
    } else {
      run.template operator()<8>();
    }
  });
}

}  // namespace rotunda::cuda
