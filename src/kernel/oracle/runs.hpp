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

/// The visible pairs of these rows and keys; slices of one batch entry.
[[nodiscard]] Runs find_runs(std::span<const Slice> slices, Range rows, Range keys);

}  // namespace rotunda::oracle_detail
