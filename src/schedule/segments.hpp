// Segments: which tokens lie in which rows of a buffer, and how the mask's slices look from there.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "rotunda/problem.hpp"
#include "rotunda/shard.hpp"

namespace rotunda {

/// Rows [row, row + len) of a buffer hold the tokens token, token + stride, …; they come from rows [owner_row, …) of
/// rank `owner`.
struct Segment {
  std::int64_t row = 0, len = 0;
  std::int64_t token = 0;
  int owner = 0;
  std::int64_t owner_row = 0;
};

/// A buffer's segments, ascending in row without a gap. With stride 1 they ascend in token too.
struct Segments {
  std::int64_t stride = 1;
  std::vector<Segment> list;

  [[nodiscard]] std::int64_t rows() const { return list.empty() ? 0 : list.back().row + list.back().len; }
};

/// Rows [begin, begin + len) of a rank or tokens of the whole, of all batch entries.
struct RowRange {
  std::int64_t begin = 0, len = 0;
};

/// A rank's own rows as they lie.
[[nodiscard]] Segments local_segments(const TokenMap& map, int rank);

/// A buffer that holds `rows[i]` of rank `first + i`, in token order (stride 1) or owner by owner (larger strides).
[[nodiscard]] Segments gathered_segments(const TokenMap& map, int first, std::span<const std::vector<RowRange>> rows);

/// The same with all rows of ranks [first, first + count).
[[nodiscard]] Segments whole_segments(const TokenMap& map, int first, int count);

/// The slices between a query buffer and a key buffer, in their rows: cut at segment borders, joined again where both
/// sides go on, trimmed, none empty. `slices` are in tokens (mask_slices); both buffers have one stride. With stride 1
/// it takes O(slices·log + pieces), and a run of query tokens has a piece a slice for all the keys that it sees whole.
/// With stride S, token distance Δ + S·(j - i) lies in a band iff j - i lies in that band shifted by Δ and divided by
/// S.
[[nodiscard]] std::vector<Slice> intersect(std::span<const Slice> slices, const Segments& q, const Segments& k);

/// Key rows of `owner` that queries in `q` see, sorted and disjoint, of any batch entry. Any stride, one owner at a
/// time.
[[nodiscard]] std::vector<RowRange> visible_key_rows(std::span<const Slice> slices, const Segments& q,
                                                     const TokenMap& k_map, int owner);

/// Key tokens that the queries of each team see (ranks in order, `inner` a team), sorted and disjoint, of any batch
/// entry. `q` holds all queries, stride 1. It takes O(slices·log + pieces), however many ranks.
[[nodiscard]] std::vector<std::vector<RowRange>> visible_key_tokens(std::span<const Slice> slices, const Segments& q,
                                                                    int ranks, int inner);

/// Query tokens that see anything, sorted and disjoint, of any batch entry.
[[nodiscard]] std::vector<RowRange> seeing_query_tokens(std::span<const Slice> slices);

/// Rows of `owner` that hold tokens of sorted, disjoint ranges, sorted and disjoint.
[[nodiscard]] std::vector<RowRange> rows_of_tokens(std::span<const RowRange> tokens, const TokenMap& map, int owner);

/// The slices with query rows in `q`.
[[nodiscard]] std::vector<Slice> slices_of(std::span<const Slice> slices, const Segments& q);

/// Spans of tokens as spans of buffer rows.
[[nodiscard]] std::vector<RowSpan> spans_in_rows(std::span<const RowSpan> spans, const Segments& segments);

}  // namespace rotunda
