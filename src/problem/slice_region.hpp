// A slice as the set of (row, column) pairs it sees, in the rows of its buffers, free of positions and infinities.
#pragma once

#include <cstdint>
#include <optional>

#include "rotunda/problem.hpp"

namespace rotunda {

/// No buffer has as many rows as this, nor any tensor as many elements: sums of two row numbers fit 64 bits.
inline constexpr std::int64_t kMaxElements = std::int64_t{1} << 62;

/// Pairs with q_begin <= row < q_end, k_begin <= column < k_end and low <= column - row <= high. Never empty; every
/// row and every column at an end is in some pair (rows between them too: both ends of a row's interval only move up).
struct SliceRegion {
  std::int64_t q_begin = 0, q_end = 0;
  std::int64_t k_begin = 0, k_end = 0;
  std::int64_t low = 0, high = 0;

  /// Columns [first(row), last(row)] are what a row of the region sees.
  [[nodiscard]] std::int64_t first(std::int64_t row) const { return row + low > k_begin ? row + low : k_begin; }
  [[nodiscard]] std::int64_t last(std::int64_t row) const { return row + high < k_end ? row + high : k_end - 1; }
};

/// Nothing where the slice sees no pair. The slice lies within buffers of fewer than kMaxElements rows; its positions
/// and band are any 64-bit numbers.
[[nodiscard]] std::optional<SliceRegion> slice_region(const Slice& slice);

/// Two regions of one batch entry share a pair.
[[nodiscard]] bool share_a_pair(const SliceRegion& a, const SliceRegion& b);

/// The slice cut down to its region, with positions and edges whose sums fit 64 bits: edges that cut nothing become
/// kInfinity; positions move with the first row unless they are huge, then both start again from 0.
[[nodiscard]] std::optional<Slice> canonical(const Slice& slice);

}  // namespace rotunda
