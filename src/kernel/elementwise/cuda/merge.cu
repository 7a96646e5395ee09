#include "kernel/elementwise/cuda/merge.hpp"

#include "kernel/elementwise/cuda/row_tile.cuh"

namespace rotunda::cuda {
namespace {

template <class Partial, class Out, class Index>
struct MergeArgs {
  RowView<const Partial, Index> partial;
  RowView<const float, Index> partial_lse;
  RowView<float, Index> acc, lse, low;
  RowView<Out, Index> out;
  int dim;
  bool init, last;
};

/// A pair's weights; a negative one: nothing was visible, and the values must not be read (they may be NaN).
struct Weights {
  float acc, partial;
};

template <class Args, class Index>
__device__ Weights merge_lse(const Args& args, Index b, Index row, Index head) {
  const double partial = args.partial_lse.at(b, row, head);
  const double before = args.init ? -HUGE_VAL : load_lse(args.lse, args.low, b, row, head);
  const double after = log_add(before, partial);
  const auto high = static_cast<float>(after);
  args.lse.at(b, row, head) = high;
  if (!args.last && args.low.data != nullptr) {
    args.low.at(b, row, head) = after == -HUGE_VAL ? 0.0F : static_cast<float>(after - static_cast<double>(high));
  }
  return {before == -HUGE_VAL ? -1.0F : static_cast<float>(exp(before - after)),
          partial == -HUGE_VAL ? -1.0F : static_cast<float>(exp(partial - after))};
}

template <class Partial, int V>
struct Pieces {
  Vector<Partial, V> partial;
  Vector<float, V> acc;
};

/// Bytes: partial.out once, acc once each way as init and last ask, out once. A pair's lse belongs to one block.
template <int V, class Partial, class Out, class Index>
__global__ void __launch_bounds__(kRowThreads)
    merge_kernel(const MergeArgs<Partial, Out, Index> args, const PairPlaces<Index> places) {
  __shared__ Weights weights[kPairs];
  __shared__ Index from[kPairs], acc[kPairs], out[kPairs];
  const Index first = static_cast<Index>(blockIdx.x) * kPairs;
  const int pairs = static_cast<int>(places.count - first < kPairs ? places.count - first : kPairs);
  if (threadIdx.x < pairs) {
    const auto [b, row, head, flat_row] = places.find(first + threadIdx.x);
    weights[threadIdx.x] = merge_lse(args, b, row, head);
    from[threadIdx.x] = args.partial.offset(b, row, head);
    acc[threadIdx.x] = args.acc.offset(b, row, head);
    out[threadIdx.x] = args.out.offset(b, row, head);
  }
  __syncthreads();
  walk_vectors<V>(
      pairs, args.dim,
      [&](int pair, int element) {
        Pieces<Partial, V> pieces{};
        if (weights[pair].partial >= 0 || isnan(weights[pair].partial)) {
          pieces.partial = load_vector<V>(args.partial.data + from[pair] + element);
        }
        if (weights[pair].acc >= 0 || isnan(weights[pair].acc)) {
          pieces.acc = load_vector<V>(args.acc.data + acc[pair] + element);
        }
        return pieces;
      },
      [&](int pair, int element, const Pieces<Partial, V>& pieces) {
        Vector<float, V> sum;
#pragma unroll
        for (int i = 0; i < V; ++i) {
          // What was not read is 0; its weight of -1 makes -0 of it, and the last sum +0 again.
          const float added = widen(pieces.partial.at[i]) * weights[pair].partial;
          sum.at[i] = fmaf(pieces.acc.at[i], weights[pair].acc, added) + 0.0F;
        }
        if (args.last) {
          Vector<Out, V> result;
#pragma unroll
          for (int i = 0; i < V; ++i) result.at[i] = narrow<Out>(sum.at[i]);
          store_vector(result, args.out.data + out[pair] + element);
        } else {
          store_vector(sum, args.acc.data + acc[pair] + element);
        }
      });
}

template <int V, class Partial, class Out, class Index>
void launch_merge(const PartialResult& partial, const RowState& state, const TensorView& out, const MergeFlags& flags,
                  Stream stream) {
  const MergeArgs<Partial, Out, Index> args{.partial = RowView<const Partial, Index>(partial.out),
                                            .partial_lse = RowView<const float, Index>(partial.lse),
                                            .acc = RowView<float, Index>(state.acc),
                                            .lse = RowView<float, Index>(state.lse),
                                            .low = RowView<float, Index>(state.lse_low),
                                            .out = RowView<Out, Index>(out),
                                            .dim = static_cast<int>(partial.out.dim()),
                                            .init = flags.init,
                                            .last = flags.last};
  const PairPlaces<Index> places(state.lse);
  merge_kernel<V, Partial, Out, Index><<<places.blocks(), kRowThreads, 0, native(stream)>>>(args, places);
  check_launch("merge");
}

template <class T, class Index>
struct RepairArgs {
  RowView<T, Index> out;
  RowView<const float, Index> lse;
  int dim;
};

/// A warp a pair: reads the lse alone where there is nothing to repair.
template <class T, class Index>
__global__ void __launch_bounds__(kRowThreads)
    repair_kernel(const RepairArgs<T, Index> args, const PairPlaces<Index> places) {
  const Index first = static_cast<Index>(blockIdx.x) * kPairs;
  for (Index i = threadIdx.x / 32; i < kPairs && first + i < places.count; i += kRowThreads / 32) {
    const auto [b, row, head, flat_row] = places.find(first + i);
    if (args.lse.at(b, row, head) != -HUGE_VALF) continue;
    for (int at = threadIdx.x % 32; at < args.dim; at += 32)
      args.out.data[args.out.offset(b, row, head) + at] = T(0.0F);
  }
}

void check_row(const TensorView& view) {
  ROTUNDA_CHECK(view.data == nullptr || view.dim() <= 1 || view.stride[3] == 1);
}

}  // namespace

void merge(const PartialResult& partial, const RowState& state, const TensorView& out, const MergeFlags& flags,
           const Device& device, Stream stream) {
  if (state.lse.empty()) return;
  const TensorView target = flags.last ? out : state.acc;
  for (const TensorView& view : {partial.out, state.acc, target}) check_row(view);
  ROTUNDA_CHECK(target.data != nullptr && (flags.init || state.acc.data != nullptr));
  const bool narrow = is_narrow(flags.width, {partial.out, partial.lse, state.acc, state.lse, state.lse_low, out});
  const CurrentDevice current(device.index);
  dispatch_device(partial.out.dtype, [&](auto source) {
    dispatch_device(flags.last ? out.dtype : partial.out.dtype, [&](auto element) {
      using Partial = decltype(source);
      using Out = decltype(element);
      if constexpr (sizeof(Partial) == 4 || sizeof(Out) == 4 || std::is_same_v<Partial, Out>) {
        constexpr int kVector = kVectorOf<float, Partial, Out>;
        const bool vectors = takes_vectors(partial.out, kVector) && takes_vectors(target, kVector) &&
                             (flags.init || takes_vectors(state.acc, kVector));
        dispatch_width(narrow, [&](auto index) {
          using Index = decltype(index);
          if (vectors) {
            launch_merge<kVector, Partial, Out, Index>(partial, state, out, flags, stream);
          } else {
            launch_merge<1, Partial, Out, Index>(partial, state, out, flags, stream);
          }
        });
      } else {
        fail(ErrorKind::internal, "merge of {} to {}: both 16 bits of one dtype, or fp32", describe(partial.out),
             describe(out));
      }
    });
  });
}

void repair(const TensorView& out, const TensorView& lse, const Device& device, Stream stream, IndexWidth width) {
  if (lse.empty() || out.empty()) return;
  check_row(out);
  const CurrentDevice current(device.index);
  dispatch_device(out.dtype, [&](auto element) {
    dispatch_width(is_narrow(width, {out, lse}), [&](auto index) {
      using T = decltype(element);
      using Index = decltype(index);
      const RepairArgs<T, Index> args{RowView<T, Index>(out), RowView<const float, Index>(lse),
                                      static_cast<int>(out.dim())};
      const PairPlaces<Index> places(lse);
      repair_kernel<T, Index><<<places.blocks(), kRowThreads, 0, native(stream)>>>(args, places);
      check_launch("repair");
    });
  });
}

}  // namespace rotunda::cuda
