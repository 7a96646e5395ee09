// How large the tiles of the cpu kernel are, and how a worker's scratch is cut. Sizes depend on the head dims alone,
// so results do not depend on threads. docs/kernels/cpu.md shows the tiles.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "base/memory.hpp"
#include "rotunda/problem.hpp"

namespace rotunda::cpu {

/// A panel is two vectors of query rows; the widest vector here has 16 lanes. Rows of a tile are a multiple of this.
inline constexpr int kMaxPanel = 32;

/// Floats between rows of a tile: room for whole panels, and one cache line more, so that rows which are a power of
/// two long do not all fall into the same cache sets.
[[nodiscard]] constexpr int leading_dim(int d) {
  return (d + kMaxPanel - 1) / kMaxPanel * kMaxPanel + 16;
}

struct TileSizes {
  int d = 0, d_v = 0;
  int keys = 0;   ///< keys of a tile, a multiple of the micro-kernel's 6 rows
  int lanes = 0;  ///< query rows of a tile, over all of its heads
  int ld_k = 0, ld_v = 0;
  bool wide = false;  ///< scores are summed in float64

  /// Forward: a tile of K and V takes about 100 KiB, Qᵀ and Oᵀ of all lanes at most 128 KiB up to d = 128: together
  /// half of a 512 KiB L2 cache. Longer heads take fewer keys and lanes.
  [[nodiscard]] static TileSizes forward(int d, int d_v, DType dtype, double scale) {
    return choose(d, d_v, needs_wide_scores(d, dtype, scale), 128, 64);
  }
  /// Backward: K, V, dK, dV of a chunk and Q, dO in both orders of a tile, each about 50 KiB at d = 128.
  [[nodiscard]] static TileSizes backward(int d, int d_v, DType dtype, double scale) {
    return choose(d, d_v, needs_wide_scores(d, dtype, scale), 64, 32);
  }

 private:
  /// A sum of d products in fp32 is off by about 2^-25·d where inputs are of size 1, and lse by scale times that; of
  /// the 1e-5 that lse may miss, this leaves no row more than a part. The usual scale, 1/sqrt(d), stays far below.
  static bool needs_wide_scores(int d, DType dtype, double scale) {
    return dtype == DType::fp32 || std::fabs(scale) * d > 64;
  }

  static TileSizes choose(int d, int d_v, bool wide, int lanes, int lanes_of_long_heads) {
    const int longest = std::max({d, d_v, 1});
    const int keys = std::clamp(12288 / longest, 24, 192) / 6 * 6;
    return {d, d_v, keys, longest <= 128 ? lanes : lanes_of_long_heads, leading_dim(d), leading_dim(d_v), wide};
  }
};

/// Hands out aligned arrays of one block of memory; with no block it only counts.
class Carver {
 public:
  explicit Carver(std::byte* block) : block_(block) {}

  template <class T>
  T* take(std::int64_t count) {
    std::byte* const here = block_ == nullptr ? nullptr : block_ + used_;
    used_ += aligned(count * static_cast<std::int64_t>(sizeof(T)));
    return reinterpret_cast<T*>(here);
  }
  [[nodiscard]] std::int64_t used() const { return used_; }

 private:
  std::byte* block_;
  std::int64_t used_ = 0;
};

/// Per key of a tile: the lanes (query rows counted from the tile's first) that see it, [first, last), and (backward)
/// whether its row of K holds a value that is not finite.
struct KeyMarks {
  std::int32_t *first, *last;
  std::uint8_t* bad_key;

  KeyMarks() = default;
  KeyMarks(const TileSizes& sizes, Carver& carver)
      : first(carver.take<std::int32_t>(sizes.keys)),
        last(carver.take<std::int32_t>(sizes.keys)),
        bad_key(carver.take<std::uint8_t>(sizes.keys)) {}
};

/// K and Qᵀ once more where scores are summed in float64; else nothing.
struct WideOperands {
  double *keys = nullptr, *queries = nullptr;  ///< [key][ld_k] and panels [panel][d][lane]
  double* lse = nullptr;                       ///< [lane], base 2 (backward)

  WideOperands() = default;
  WideOperands(const TileSizes& sizes, Carver& carver) {
    if (!sizes.wide) return;
    keys = carver.take<double>(static_cast<std::int64_t>(sizes.keys) * sizes.ld_k);
    queries = carver.take<double>(static_cast<std::int64_t>(sizes.lanes) * sizes.ld_k);
    lse = carver.take<double>(sizes.lanes);
  }
};

/// One worker's scratch in forward. Panels are [dim][lane], so the lanes of a panel are contiguous.
struct ForwardScratch {
  float *keys, *values;                 ///< [key][ld_k], [key][ld_v]
  float* queries;                       ///< Qᵀ panels [panel][d][lane]
  float* acc;                           ///< Oᵀ panels [panel][d_v][lane]
  float* scores;                        ///< Sᵀ, then Pᵀ, of one panel: [key][lane]
  float* rows;                          ///< one panel's rows in natural order, on their way in or out
  float *row_max, *row_sum, *seen_max;  ///< [lane]: running maximum of raw scores, sum, greatest of this call
  std::uint8_t* covered;                ///< [lane of a head]
  KeyMarks marks;
  WideOperands wide;

  ForwardScratch(const TileSizes& sizes, Carver& carver)
      : keys(carver.take<float>(static_cast<std::int64_t>(sizes.keys) * sizes.ld_k)),
        values(carver.take<float>(static_cast<std::int64_t>(sizes.keys) * sizes.ld_v)),
        queries(carver.take<float>(static_cast<std::int64_t>(sizes.lanes) * sizes.ld_k)),
        acc(carver.take<float>(static_cast<std::int64_t>(sizes.lanes) * sizes.ld_v)),
        scores(carver.take<float>(static_cast<std::int64_t>(sizes.keys) * kMaxPanel)),
        rows(carver.take<float>(static_cast<std::int64_t>(kMaxPanel) * std::max(sizes.ld_k, sizes.ld_v))),
        row_max(carver.take<float>(sizes.lanes)),
        row_sum(carver.take<float>(sizes.lanes)),
        seen_max(carver.take<float>(sizes.lanes)),
        covered(carver.take<std::uint8_t>(sizes.lanes)),
        marks(sizes, carver),
        wide(sizes, carver) {}
};

/// One worker's scratch in backward.
struct BackwardScratch {
  float *keys, *values;                        ///< [key][ld_k], [key][ld_v]
  float *grad_keys, *grad_values;              ///< the same shapes
  float *queries, *grads;                      ///< Q and dO, [lane][ld_k], [lane][ld_v]
  float *queries_t, *grads_t;                  ///< the same as panels [panel][dim][lane]
  float* grad_queries;                         ///< [lane][ld_k]
  float *probs, *grad_scores;                  ///< Pᵀ and dSᵀ, [key][ld_s]
  float *lse_high, *lse_low, *delta;           ///< [lane]; base-2 lse in two parts
  std::int32_t *from, *to;                     ///< [lane]: the keys that it sees
  std::uint8_t *alive, *bad_query, *bad_grad;  ///< [lane]
  KeyMarks marks;
  WideOperands wide;
  int ld_s;

  BackwardScratch(const TileSizes& sizes, Carver& carver) : ld_s(sizes.lanes + 16) {
    const std::int64_t n = sizes.keys, lanes = sizes.lanes;
    keys = carver.take<float>(n * sizes.ld_k);
    values = carver.take<float>(n * sizes.ld_v);
    grad_keys = carver.take<float>(n * sizes.ld_k);
    grad_values = carver.take<float>(n * sizes.ld_v);
    queries = carver.take<float>(lanes * sizes.ld_k);
    grads = carver.take<float>(lanes * sizes.ld_v);
    queries_t = carver.take<float>(lanes * sizes.ld_k);
    grads_t = carver.take<float>(lanes * sizes.ld_v);
    grad_queries = carver.take<float>(lanes * sizes.ld_k);
    probs = carver.take<float>(n * ld_s);
    grad_scores = carver.take<float>(n * ld_s);
    lse_high = carver.take<float>(lanes);
    lse_low = carver.take<float>(lanes);
    delta = carver.take<float>(lanes);
    from = carver.take<std::int32_t>(lanes);
    to = carver.take<std::int32_t>(lanes);
    alive = carver.take<std::uint8_t>(lanes);
    bad_query = carver.take<std::uint8_t>(lanes);
    bad_grad = carver.take<std::uint8_t>(lanes);
    marks = KeyMarks(sizes, carver);
    wide = WideOperands(sizes, carver);
  }
};

template <class Scratch>
[[nodiscard]] std::int64_t scratch_bytes(const TileSizes& sizes) {
  Carver carver(nullptr);
  [[maybe_unused]] const Scratch counted(sizes, carver);
  return carver.used();
}

}  // namespace rotunda::cpu
