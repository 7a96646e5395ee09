// Slice lists as few calls of a library's attention: one mask a call, anchored at a corner of each sequence.
//
// Libraries know rectangles with a diagonal from the top-left or bottom-right corner and a bound on either side of it,
// for a batch of sequences. A slice cut down to the rows and keys that see each other always has its diagonal inside,
// so any one slice is such a call; what is gained here is that few calls serve many slices.
#pragma once

#include <compare>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "problem/slice_region.hpp"
#include "rotunda/problem.hpp"

namespace rotunda {

/// Row i of a sequence sees key j iff -left <= j - i - shift <= right, where shift is 0 (top-left) or k_len - q_len
/// (bottom-right). Bounds are >= 0; kInfinity is none.
struct CornerMask {
  Align align = Align::top_left;
  std::int64_t left = kInfinity, right = kInfinity;

  auto operator<=>(const CornerMask&) const = default;
};

/// Query rows [q_begin, q_begin + q_len) against key rows [k_begin, k_begin + k_len) of a batch entry. Every row sees a
/// key, every key is seen.
struct Sequence {
  std::int64_t batch = 0;
  std::int64_t q_begin = 0, q_len = 0;
  std::int64_t k_begin = 0, k_len = 0;

  bool operator==(const Sequence&) const = default;
};

[[nodiscard]] RowSpan rows_of(const Sequence& sequence, Side side);

/// How a call's sequences lie.
enum class CallForm {
  dense,   ///< the same lengths, at a regular distance
  padded,  ///< the same first rows of batch entries at a regular distance, of different lengths
  ragged,  ///< anywhere
};

/// From one sequence of a dense or padded call to the next.
struct SequenceStep {
  std::int64_t batch = 0, q = 0, k = 0;

  bool operator==(const SequenceStep&) const = default;
};

/// One library call. Its sequences share no query row and no key row, and are in ascending order of both.
struct GroupedCall {
  CornerMask mask;
  std::vector<Sequence> sequences;
  CallForm form = CallForm::dense;
  SequenceStep step;         ///< of dense and padded calls
  bool shares_rows = false;  ///< some of its query rows are in an earlier call: the results have to be merged
  bool shares_keys = false;  ///< some of its key rows are in an earlier call: their gradients add up
  [[nodiscard]] std::int64_t longest(Side side) const;  ///< the most rows of a sequence
};

/// Pairs of a batch entry that one banded rectangle holds.
struct BandedRectangle {
  std::int64_t batch = 0;
  SliceRegion region;
  std::int64_t pairs = 0;
};

/// What the slices see as few rectangles, by batch and first row: slices that make up one are joined. Bands are no
/// wider than what their rectangles hold.
[[nodiscard]] std::vector<BandedRectangle> join_slices(std::span<const Slice> slices);

/// More calls than this for one step are slower than any kernel that takes the slices as they are.
inline constexpr std::size_t kMostCalls = 16;

struct Grouping {
  std::vector<GroupedCall> calls;
  std::optional<std::string> refusal;  ///< why the list is not served; then there are no calls
};

/// The calls that together see what the slices see, each pair once. Slices of one batch entry that make up a banded
/// rectangle become one sequence; sequences with one mask become one call.
[[nodiscard]] Grouping group_slices(std::span<const Slice> slices, std::size_t most_calls = kMostCalls);

/// Rows [0, rows) of each batch entry that no call has among its rows of a side, in order.
[[nodiscard]] std::vector<RowSpan> untouched_rows(const std::vector<GroupedCall>& calls, std::int64_t batches,
                                                  std::int64_t rows, Side side);

/// "ragged call of 3 sequences, bottom-right, left 511, right 0"
[[nodiscard]] std::string describe(const GroupedCall& call);

}  // namespace rotunda
