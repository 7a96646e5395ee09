// Operations with numbers of their own for each (batch entry, row, head): a block takes kPairs of these triples, works
// out their numbers with a thread each, and then walks their elements as vectors.
#pragma once

#include <cmath>
#include <cstdint>

#include "base/cuda/check.hpp"
#include "base/cuda/divider.cuh"
#include "base/cuda/index.hpp"
#include "base/cuda/vectors.cuh"

namespace rotunda::cuda {

constexpr int kPairs = 64;  // of rows and heads a block: at dim 128 eight vectors of 4 elements a thread
constexpr int kRowThreads = 256;
constexpr int kRowUnroll = 4;  // vectors in flight a thread

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

/// The numbering of (batch, row, head), heads fastest.
template <class Index>
struct PairPlaces {
  Index count = 0;
  Divider<Index> heads, rows;

  explicit PairPlaces(const TensorView& view)
      : count(static_cast<Index>(view.batch() * view.rows() * view.heads())), heads(view.heads()), rows(view.rows()) {}

  struct Place {
    Index batch, row, head;
    Index flat_row;  ///< batch·rows + row
  };
  __device__ Place find(Index pair) const {
    const Index flat_row = heads.quotient(pair);
    const Index batch = rows.quotient(flat_row);
    return {batch, flat_row - batch * rows.divisor(), pair - flat_row * heads.divisor(), flat_row};
  }
  [[nodiscard]] unsigned blocks() const {
    return static_cast<unsigned>((static_cast<std::int64_t>(count) + kPairs - 1) / kPairs);
  }
};

/// log(exp(a) + exp(b)), also where either is -inf; NaN stays.
__device__ inline double log_add(double a, double b) {
  if (a == -HUGE_VAL) return b;
  if (b == -HUGE_VAL) return a;
  return (a > b ? a : b) + log1p(exp(-fabs(a - b)));
}

/// The state's log-sum-exp (row_state.hpp).
template <class Index>
__device__ double load_lse(const RowView<float, Index>& lse, const RowView<float, Index>& low, Index b, Index r,
                           Index h) {
  const double high = lse.at(b, r, h);
  return low.data == nullptr || high == -HUGE_VAL ? high : high + low.at(b, r, h);
}

/// Calls load(pair of the block, first element) and store(pair, first element, loaded) for each vector of `pairs` rows
/// with `dim` elements, several loads ahead of the stores.
template <int V, class Load, class Store>
__device__ void walk_vectors(int pairs, int dim, Load&& load, Store&& store) {
  const int in_row = dim / V;
  const int total = pairs * in_row;
  for (int first = threadIdx.x; first < total; first += kRowThreads * kRowUnroll) {
    decltype(load(0, 0)) loaded[kRowUnroll];
    int pair[kRowUnroll], element[kRowUnroll];
#pragma unroll
    for (int u = 0; u < kRowUnroll; ++u) {
      const int n = first + u * kRowThreads;
      pair[u] = n / in_row;
      element[u] = (n - pair[u] * in_row) * V;
      if (n < total) loaded[u] = load(pair[u], element[u]);
    }
#pragma unroll
    for (int u = 0; u < kRowUnroll; ++u) {
      if (first + u * kRowThreads < total) store(pair[u], element[u], loaded[u]);
    }
  }
}

}  // namespace rotunda::cuda
