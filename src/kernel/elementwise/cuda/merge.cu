#include "kernel/elementwise/cuda/merge.hpp"

#include "kernel/elementwise/cuda/row_tile.cuh"

namespace rotunda::cuda {
namespace {

template <class T>
using Rows = RowView<T, std::int64_t>;

template <class Partial, class To>
struct MergeArgs {
  Rows<const Partial> partial;
  Rows<const float> partial_lse;
  Rows<const float> acc;
  Rows<float> lse, low;  ///< low without data: none is kept
  Rows<To> to;
  bool last;
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

/// value·weight, or 0 where the weight says that there is no value.
__device__ inline float weigh(float value, float weight) {
  return weight < 0 ? 0.0F : value * weight;
}

template <class Partial, int V>
struct Pieces {
  Vector<Partial, V> partial;
  Vector<float, V> acc;
};

/// Bytes: partial.out once, acc once each way as init and last ask, out once. A pair's lse belongs to one lane. Seven
/// or eight blocks a multiprocessor keep 64 KiB or more in flight.
template <int V, bool kInit, class Partial, class To>
__global__ void __launch_bounds__(kPairThreads, kInit ? 8 : 7)
    merge_kernel(const __grid_constant__ MergeArgs<Partial, To> args, const __grid_constant__ WarpPairs pairs) {
  const WarpShare share(pairs);
  if (share.lanes == 0) return;
  const auto [b, row, head] = share.place;
  const std::int64_t own_partial = args.partial.offset(b, row, head);
  const std::int64_t own_acc = args.acc.offset(b, row, head);
  const std::int64_t own_to = args.to.offset(b, row, head);
  Weights own;
  constexpr int kInFlight = vectors_in_flight(V * (sizeof(Partial) + (kInit ? 0 : sizeof(float))));
  walk_vectors<V, kInFlight>(
      pairs, share,
      [&](int pair, int element) {
        Pieces<Partial, V> pieces{};
        pieces.partial = load_vector<V>(args.partial.data + of_lane(own_partial, pair) + element);
        if constexpr (!kInit) pieces.acc = load_vector<V>(args.acc.data + of_lane(own_acc, pair) + element);
        return pieces;
      },
      [&] {
        if (!share.has_pair) return;
        const double before = kInit ? -HUGE_VAL : load_lse(args.lse, args.low, b, row, head);
        const auto [after, weights] = log_sum(before, args.partial_lse.at(b, row, head));
        own = weights;
        const auto high = static_cast<float>(after);
        args.lse.at(b, row, head) = high;
        if (args.last || args.low.data == nullptr) return;
        args.low.at(b, row, head) = after == -HUGE_VAL ? 0.0F : static_cast<float>(after - static_cast<double>(high));
      },
      [&](bool exists, int pair, int element, const Pieces<Partial, V>& pieces) {
        const float acc_weight = kInit ? -1.0F : __shfl_sync(kAllLanes, own.acc, pair);
        const float partial_weight = __shfl_sync(kAllLanes, own.partial, pair);
        To* const to = args.to.data + of_lane(own_to, pair) + element;
        Vector<To, V> sum;
#pragma unroll
        for (int i = 0; i < V; ++i) {
          sum.at[i] =
              narrow<To>(weigh(pieces.acc.at[i], acc_weight) + weigh(widen(pieces.partial.at[i]), partial_weight));
        }
        if (exists) store_vector(sum, to);
      });
}

template <int V, bool kInit, class Partial, class To>
void launch_merge(const PartialResult& partial, const RowState& state, const TensorView& to, bool last, Stream stream) {
  const MemoryOrder order(to);
  const MergeArgs<Partial, To> args{.partial = order.rows<const Partial>(partial.out),
                                    .partial_lse = order.rows<const float>(partial.lse),
                                    .acc = order.rows<const float>(state.acc),
                                    .lse = order.rows<float>(state.lse),
                                    .low = order.rows<float>(state.lse_low),
                                    .to = order.rows<To>(to),
                                    .last = last};
  const WarpPairs pairs(order.permute(state.lse), to.dim(), V);
  merge_kernel<V, kInit, Partial, To><<<pairs.blocks(), kPairThreads, 0, native(stream)>>>(args, pairs);
  check_launch("merge");
}

/// Calls body with a std::bool_constant.
template <class Body>
void dispatch_flag(bool flag, Body&& body) {
  if (flag) return body(std::true_type{});
  body(std::false_type{});
}

void check_row(const TensorView& view) {
  ROTUNDA_CHECK(view.data == nullptr || view.dim() <= 1 || view.stride[3] == 1);
}

}  // namespace

void merge(const PartialResult& partial, const RowState& state, const TensorView& out, const MergeFlags& flags,
           const Device& device, Stream stream) {
  if (state.lse.empty()) return;
  const TensorView& to = flags.last ? out : state.acc;
  for (const TensorView& view : {partial.out, state.acc, to}) check_row(view);
  ROTUNDA_CHECK(to.data != nullptr && (flags.init || state.acc.data != nullptr));
  const CurrentDevice current(device.index);
  dispatch_device(partial.out.dtype, [&](auto source) {
    dispatch_device(to.dtype, [&](auto target) {
      using Partial = decltype(source);
      using To = decltype(target);
      if constexpr (sizeof(Partial) == 4 || sizeof(To) == 4 || std::is_same_v<Partial, To>) {
        constexpr int kVector = kVectorOf<float, Partial, To>;
        const bool vectors = takes_vectors(partial.out, kVector) && takes_vectors(to, kVector) &&
                             (flags.init || takes_vectors(state.acc, kVector));
        dispatch_flag(flags.init, [&](auto init) {
          if (vectors) {
            launch_merge<kVector, init, Partial, To>(partial, state, to, flags.last, stream);
          } else {
            launch_merge<1, init, Partial, To>(partial, state, to, flags.last, stream);
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
