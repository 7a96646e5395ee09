// Operations with numbers of their own for each (batch entry, row, head), a pair for short, such as its lse: its
// statistics. In WarpPairs a warp takes several, works out their numbers with a lane each, and walks their elements as
// vectors: no block waits for a few lanes.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>

#include "base/cuda/check.hpp"
#include "base/cuda/divider.cuh"
#include "base/cuda/index.hpp"
#include "base/cuda/vectors.cuh"

namespace rotunda::cuda {

constexpr int kWarp = 32;
constexpr int kPairThreads = 128;  // of a block: few, since a multiprocessor's registers go to whole blocks
constexpr int kPairWarps = kPairThreads / kWarp;
constexpr int kWarpVectors = 256;  // of the pairs of a warp, as far as that goes: eight a lane
constexpr int kTileVectors = 320;  // of a tile's, whose pairs are a power of two: 32 at d 40
constexpr int kSectorBits = 3;     // log2 of the statistics in a sector: the 32 bytes that memory moves
constexpr int kFewTiles = 8;  // of a batch entry's rows: fewer would leave too many lanes of the last without pairs
constexpr unsigned kAllLanes = 0xffffffffU;

/// A view by batch entry, row and head; the last axis is contiguous.
template <class T, class Index>
struct RowView {
  T* data = nullptr;
  Index batch = 0, row = 0, head = 0;

  RowView() = default;
  explicit RowView(const TensorView& view)
      : data(static_cast<T*>(view.data)),
        batch(static_cast<Index>(view.stride[0])),
        row(static_cast<Index>(view.stride[1])),
        head(static_cast<Index>(view.stride[2])) {}
  __device__ Index offset(Index b, Index r, Index h) const { return b * batch + r * row + h * head; }
  __device__ T& at(Index b, Index r, Index h) const { return data[offset(b, r, h)]; }
};

/// The numbering of a view's pairs, the last of its three axes fastest.
template <class Index>
struct PairPlaces {
  Index count = 0;
  Divider<Index> rows, heads;

  PairPlaces() = default;
  explicit PairPlaces(const TensorView& view)
      : count(static_cast<Index>(view.batch() * view.rows() * view.heads())), rows(view.rows()), heads(view.heads()) {}

  struct Place {
    Index batch, row, head;
  };
  __device__ Place find(Index pair) const {
    const Index row = heads.quotient(pair);
    const Index batch = rows.quotient(row);
    return {batch, row - batch * rows.divisor(), pair - row * heads.divisor()};
  }
};

/// Batch entries, rows and heads in the order of a view's memory, so that pairs with neighbouring numbers are
/// neighbours there. Views that are permuted alike keep their pairs.
class MemoryOrder {
 public:
  explicit MemoryOrder(const TensorView& view) {
    std::stable_sort(axes_.begin(), axes_.end(), [&](std::size_t a, std::size_t b) {
      if ((view.shape[a] == 1) != (view.shape[b] == 1)) return view.shape[a] == 1;
      return view.stride[a] > view.stride[b];
    });
  }
  [[nodiscard]] TensorView permute(const TensorView& view) const {
    TensorView result = view;
    for (std::size_t i = 0; i < axes_.size(); ++i) {
      result.shape[i] = view.shape[axes_[i]];
      result.stride[i] = view.stride[axes_[i]];
    }
    return result;
  }
  template <class T>
  [[nodiscard]] RowView<T, std::int64_t> rows(const TensorView& view) const {
    return RowView<T, std::int64_t>(permute(view));
  }

 private:
  std::array<std::size_t, 3> axes_{0, 1, 2};
};

/// How pairs are dealt to warps: `each` that are neighbours in memory or, where neighbours in memory have statistics
/// that lie far apart (bshd with an lse [head, row]), tiles of 2^tall rows by 2^wide heads. Four bytes of a statistic
/// here and there cost a sector each, so that at d 40 a warp of neighbours would move nearly as many for statistics as
/// for vectors. Offsets have 64 bits: a lane finds them once for all of its pair's elements.
struct WarpPairs {
  PairPlaces<std::int64_t> places;  ///< 2^tall rows count as one
  std::int64_t rows;                ///< of a batch entry; its last tiles may have fewer than 2^tall
  Divider<std::uint32_t> in_pair;   ///< vectors
  int each;                         ///< pairs of a warp
  int tall = 0, wide = 5;           ///< no tiles: lane_of(n) is n

  WarpPairs(const TensorView& pairs, std::int64_t dim, int vector) : rows(pairs.rows()), in_pair(dim / vector) {
    const auto pairs_of = [&](std::int64_t vectors) {
      return static_cast<unsigned>(std::clamp<std::int64_t>(vectors * vector / dim, 1, kWarp));
    };
    each = static_cast<int>(pairs_of(kWarpVectors));
    TensorView counted = pairs;
    const int tile = std::bit_width(pairs_of(kTileVectors)) - 1;
    const int heads =
        std::min(std::countr_zero(static_cast<std::uint64_t>(pairs.heads())), std::max(tile - kSectorBits, 0));
    const bool apart = pairs.stride[1] == 1 && pairs.stride[2] != 1;
    if (apart && rows >> (tile - heads) >= kFewTiles) {
      each = 1 << tile;
      wide = heads;
      tall = tile - heads;
      counted.shape[1] = (rows + (1 << tall) - 1) >> tall;
    }
    places = PairPlaces<std::int64_t>(counted);
  }

  [[nodiscard]] __host__ __device__ std::int64_t count() const { return places.count << tall; }
  [[nodiscard]] unsigned blocks() const {
    const std::int64_t in_block = std::int64_t{kPairWarps} * each;
    return static_cast<unsigned>((count() + in_block - 1) / in_block);
  }
  /// A warp's lanes have its tile head by head, as its statistics lie, and its vectors go row by row, as they lie: the
  /// lane of the pair that is number n there.
  [[nodiscard]] __device__ unsigned lane_of(unsigned n) const {
    return ((n & ((1U << wide) - 1)) << tall) + (n >> wide);
  }
};

/// The pairs of the thread's warp.
struct WarpShare {
  struct Place {
    std::uint32_t batch, row, head;  // 64 bits would cost registers
  };
  int lane = static_cast<int>(threadIdx.x) % kWarp;
  int lanes;      ///< lanes from this on have no pair; may be 0, and then nothing below is known
  bool has_pair;  ///< the lane: not where a tile's last rows don't exist
  Place place;    ///< where the lane's pair lies; without one, where some other does
  int count;      ///< pairs

  __device__ explicit WarpShare(const WarpPairs& pairs) {
    const std::int64_t first = (std::int64_t{blockIdx.x} * kPairWarps + threadIdx.x / kWarp) * pairs.each;
    lanes = static_cast<int>(max(min(pairs.count() - first, std::int64_t{pairs.each}), std::int64_t{0}));
    if (lanes == 0) return;
    const std::int64_t number = first + min(lane, lanes - 1);
    const auto [b, tile, head] = pairs.places.find(number >> pairs.tall);
    const std::int64_t row = (tile << pairs.tall) + (number & ((1 << pairs.tall) - 1));
    has_pair = lane < lanes && row < pairs.rows;
    place = {static_cast<std::uint32_t>(b), static_cast<std::uint32_t>(min(row, pairs.rows - 1)),
             static_cast<std::uint32_t>(head)};
    count = __popc(__ballot_sync(kAllLanes, has_pair));
  }
};

/// An offset that another lane of the warp has. (A pointer would come back as one to no kind of memory in particular.)
__device__ inline std::int64_t of_lane(std::int64_t offset, int lane) {
  return __shfl_sync(kAllLanes, offset, lane);
}

/// Vectors that a lane loads before it stores any, for vectors of so many bytes: 64 to 96 bytes in flight.
constexpr int vectors_in_flight(int bytes) {
  return bytes <= 8 ? 8 : bytes <= 24 ? 4 : 3;
}

/// For each vector of a warp's pairs load(lane of the pair, first element) and store(exists, lane of the pair, first
/// element, loaded), kMost loads ahead of the stores; between the first loads and the first stores prepare(), whose
/// work hides behind them. Every lane takes part in every call: beyond the end it loads the last vector again, and
/// `exists` is false.
template <int V, int kMost, class Load, class Prepare, class Store>
__device__ void walk_vectors(const WarpPairs& pairs, const WarpShare& share, Load&& load, Prepare&& prepare,
                             Store&& store) {
  const auto total = static_cast<unsigned>(share.count) * pairs.in_pair.divisor();
  decltype(load(0, 0)) loaded[kMost];
  unsigned place[kMost];  // the pair's lane and, in the lower 16 bits, the first element: one register for both
  const auto load_turn = [&](unsigned first) {
#pragma unroll
    for (int u = 0; u < kMost; ++u) {
      const unsigned n = min(first + u * kWarp + share.lane, total - 1), number = pairs.in_pair.quotient(n);
      const unsigned element = (n - number * pairs.in_pair.divisor()) * V, pair = pairs.lane_of(number);
      place[u] = pair << 16 | element;
      loaded[u] = load(static_cast<int>(pair), static_cast<int>(element));
    }
  };
  unsigned first = 0;
  load_turn(first);
  prepare();
  for (;;) {
#pragma unroll
    for (int u = 0; u < kMost; ++u) {
      store(first + u * kWarp + share.lane < total, static_cast<int>(place[u] >> 16),
            static_cast<int>(place[u] & 0xffff), loaded[u]);
    }
    first += kMost * kWarp;
    if (first >= total) return;
    load_turn(first);
  }
}

/// log(exp(a) + exp(b)), also where either is -inf; NaN stays.
__device__ inline double log_add(double a, double b) {
  if (a == -HUGE_VAL) return b;
  if (b == -HUGE_VAL) return a;
  return (a > b ? a : b) + log1p(exp(-fabs(a - b)));
}

/// A state's log-sum-exp (row_state.hpp). Without a low part the high one is loaded in its place: a branch would wait.
__device__ inline double load_lse(const RowView<float, std::int64_t>& lse, const RowView<float, std::int64_t>& low,
                                  std::int64_t b, std::int64_t r, std::int64_t h) {
  const bool has_low = low.data != nullptr;
  const double high = lse.at(b, r, h), rest = (has_low ? low : lse).at(b, r, h);
  return has_low && high != -HUGE_VAL ? high + rest : high;
}

}  // namespace rotunda::cuda
