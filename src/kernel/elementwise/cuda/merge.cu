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

/// What a row's two values count for; a negative weight: nothing was visible, and the value (NaN, perhaps) is not used.
struct Weights {
  float acc, partial;
};

/// Of two log-sum-exps: that of both, and what share of it each is. One exponential in float64 serves all.
struct LogSum {
  double lse;
  Weights weights;
};
__device__ inline LogSum log_sum(double before, double partial) {
  const auto alone = [](double lse) { return lse == -HUGE_VAL ? -1.0F : isnan(lse) ? NAN : 1.0F; };
  if (partial == -HUGE_VAL) return {before, {alone(before), -1.0F}};
  if (before == -HUGE_VAL) return {partial, {-1.0F, alone(partial)}};
  const double ratio = exp(-fabs(before - partial));
  const auto less = static_cast<float>(ratio);
  const float more = 1.0F / (1.0F + less);
  const bool grows = partial > before;
  return {(grows ? partial : before) + log1p(ratio), {grows ? less * more : more, grows ? more : less * more}};
}

template <class Args, class Index>
__device__ Weights merge_lse(const Args& args, Index b, Index row, Index head) {
  const double partial = args.partial_lse.at(b, row, head);
  const double before = args.init ? -HUGE_VAL : load_lse(args.lse, args.low, b, row, head);
  const auto [after, weights] = log_sum(before, partial);
  const auto high = static_cast<float>(after);
  args.lse.at(b, row, head) = high;
  if (!args.last && args.low.data != nullptr) {
    args.low.at(b, row, head) = after == -HUGE_VAL ? 0.0F : static_cast<float>(after - static_cast<double>(high));
  }
  return weights;
}

/// value·weight, or 0 where the weight says that there is no value.
__device__ inline float weigh(float value, float weight) {
  return weight < 0 ? 0.0F : value * weight;
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
        pieces.partial = load_vector<V>(args.partial.data + from[pair] + element);
        if (!args.init) pieces.acc = load_vector<V>(args.acc.data + acc[pair] + element);
        return pieces;
      },
      [&](int pair, int element, const Pieces<Partial, V>& pieces) {
        const Weights weight = weights[pair];
        Vector<float, V> sum;
#pragma unroll
        for (int i = 0; i < V; ++i) {
          sum.at[i] = weigh(pieces.acc.at[i], weight.acc) + weigh(widen(pieces.partial.at[i]), weight.partial);
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

}  // namespace rotunda::cuda
