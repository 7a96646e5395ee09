// What a slice means for a block of query rows.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernel/sm90/wide/work_list.hpp"

namespace rotunda::sm90::wide {

/// The rows of a block that a slice covers, and the keys that some of them see. Row i of the block sees the keys (rows
/// of the buffer) of [key_begin, key_end) that lie in [i + low, i + high).
struct Segment {
  int row_begin = 0, row_end = 0;  ///< counted from the block's first
  int key_begin = 0, key_end = 0;
  int low = 0, high = 0;

  [[nodiscard]] __host__ __device__ int tiles() const { return (key_end - key_begin + kTileKeys - 1) / kTileKeys; }
};

/// Far beyond any row, and far from overflow when rows are added.
constexpr std::int64_t kFarEdge = std::int64_t{1} << 61;
constexpr std::int64_t kFarRow = 1 << 30;

[[nodiscard]] __host__ __device__ inline std::int64_t clamp_to(std::int64_t value, std::int64_t most) {
  return value > most ? most : value < -most ? -most : value;
}

[[nodiscard]] __host__ __device__ inline std::int64_t smaller(std::int64_t a, std::int64_t b) {
  return a < b ? a : b;
}
[[nodiscard]] __host__ __device__ inline std::int64_t larger(std::int64_t a, std::int64_t b) {
  return a > b ? a : b;
}

/// Of the block that begins at query row `row`; without keys (tiles() is 0) where no row of it sees one.
[[nodiscard]] __host__ __device__ inline Segment segment_of(const Slice& slice, std::int64_t row) {
  const std::int64_t begin = larger(slice.q_begin - row, 0);
  const std::int64_t end = smaller(slice.q_begin + slice.q_len - row, kBlockRows);
  const std::int64_t diagonal = slice.q_pos - slice.q_begin + row - slice.k_pos + slice.k_begin;
  const std::int64_t low = diagonal - clamp_to(slice.left, kFarEdge);
  const std::int64_t high = diagonal + clamp_to(slice.right, kFarEdge) + 1;
  const std::int64_t key_begin = larger(slice.k_begin, begin + low);
  const std::int64_t key_end = smaller(slice.k_begin + slice.k_len, end - 1 + high);
  if (begin >= end || low >= high || key_begin >= key_end) return {};
  return {static_cast<int>(begin),
          static_cast<int>(end),
          static_cast<int>(key_begin),
          static_cast<int>(key_end),
          static_cast<int>(clamp_to(low, kFarRow)),
          static_cast<int>(clamp_to(high, kFarRow))};
}

}  // namespace rotunda::sm90::wide
