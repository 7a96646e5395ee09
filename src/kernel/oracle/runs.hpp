// The pairs of a block of attention that are visible, as runs of keys.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "rotunda/problem.hpp"

namespace rotunda::oracle_detail {

/// Indices [begin, end).
struct Range {
  std::int64_t begin = 0, end = 0;
  [[nodiscard]] std::int64_t size() const { return end - begin; }
};

/// Query row `row` sees keys [begin, end).
struct Run {
  std::int64_t row = 0, begin = 0, end = 0;
};

/// Visible pairs, by row; a row may have several runs. rows and keys are the smallest ranges that hold them all.
struct Runs {
  std::vector<Run> list;
  Range rows, keys;
};

/// Slices of one batch entry, found by where they lie: masks of many documents have many, of which a block meets few.
class SliceIndex {
 public:
  explicit SliceIndex(std::span<const Slice> slices);

  /// Those that meet both ranges, in the order in which they were given. Where slices follow each other along an axis
  /// it takes a time that grows with their number alone.
  [[nodiscard]] std::vector<Slice> meeting(Range rows, Range keys) const;

 private:
  struct Axis {
    std::vector<std::size_t> order;        ///< numbers of the slices by begin
    std::vector<std::int64_t> begin, end;  ///< in that order; end: the latest so far
    [[nodiscard]] std::span<const std::size_t> candidates(Range range) const;
  };

  template <class Begin, class Length>
  [[nodiscard]] Axis axis(Begin begin, Length length) const;

  std::span<const Slice> slices_;
  Axis q_, k_;
};

/// The visible pairs of these rows and keys.
[[nodiscard]] Runs find_runs(const SliceIndex& slices, Range rows, Range keys);

}  // namespace rotunda::oracle_detail
