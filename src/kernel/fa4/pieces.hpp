// Slice lists in the form that FlashAttention-4's kernels take: joined, cut, and sorted into launches.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "rotunda/problem.hpp"

namespace rotunda::fa4 {

/// A slice of a launch: row i of its rows sees column j of its keys iff low <= j - i <= high, both counted from the
/// slice's first. Without keys its rows see nothing.
struct Piece {
  std::int64_t batch = 0;
  std::int64_t q_begin = 0, q_len = 0;
  std::int64_t k_begin = 0, k_len = 0;
  std::int64_t low = -kInfinity, high = kInfinity;
  std::int64_t q_sum = 0, k_sum = 0;  ///< backward: first row of its sums

  bool operator==(const Piece&) const = default;
};

[[nodiscard]] inline std::int64_t length_of(const Piece& piece, Side side) {
  return side == Side::query ? piece.q_len : piece.k_len;
}
/// How many tiles of so many rows a side of it has.
[[nodiscard]] inline std::int64_t tiles_of(const Piece& piece, Side side, int tile) {
  return (length_of(piece, side) + tile - 1) / tile;
}

/// The pieces of one kernel launch, those that take longest first.
using Launch = std::vector<Piece>;

/// The slices as few pieces: what makes up a banded rectangle becomes one. In the order of batch and first row.
[[nodiscard]] std::vector<Piece> joined_pieces(std::span<const Slice> slices);

/// Forward: within a launch no two pieces share a query row. With `init` the first launch, and with `last` the last,
/// covers all rows of the buffers: what no slice does in pieces without keys.
[[nodiscard]] std::vector<Launch> forward_launches(std::span<const Slice> slices, std::int64_t batches,
                                                   std::int64_t rows, bool init, bool last);

/// Rows [begin, begin + len) of a batch entry, whose sums begin at row `sum` of the accumulators.
struct Segment {
  std::int64_t batch = 0, begin = 0, len = 0;
  std::int64_t sum = 0;

  bool operator==(const Segment&) const = default;
};

/// The rows of one side, cut so that kernels which add up whole tiles keep apart what pieces don't share.
struct SumRows {
  std::vector<Segment> segments;  ///< in the order of batch and first row
  std::int64_t rows = 0;          ///< of the accumulators: each segment has whole tiles
};

/// Backward: launches whose pieces begin a whole number of tiles after their segments' first rows and end after a whole
/// tile or with their segments, on both sides: a tile of sums belongs to the rows of one segment, and every piece that
/// reaches into a tile covers it.
struct BackwardLaunches {
  SumRows q, k;
  std::vector<Launch> launches;
  std::int64_t pieces = 0;
};

/// One launch, or with `apart` several in which no two pieces share a query or key row: their sums then have one order.
[[nodiscard]] BackwardLaunches backward_launches(std::span<const Slice> slices, int tile_q, int tile_k, bool apart);

/// One launch whose pieces share no key, and which covers all key rows [0, rows_k): what no slice does in pieces
/// without query rows. Nothing where there is no such launch. Keys have no sums.
[[nodiscard]] std::optional<BackwardLaunches> direct_launch(std::span<const Slice> slices, int tile_q,
                                                            std::int64_t batches, std::int64_t rows_k);

}  // namespace rotunda::fa4
