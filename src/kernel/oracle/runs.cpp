#include "kernel/oracle/runs.hpp"

#include <algorithm>
#include <limits>

namespace rotunda::oracle_detail {
namespace {

/// Keys of `slice` that satisfy  -left <= (k_pos + j) - (q_pos + i) <= right  for query row `row`.
Range visible_keys(const Slice& slice, std::int64_t row) {
  const std::int64_t level = slice.q_pos + (row - slice.q_begin) - slice.k_pos;  // j on the diagonal
  Range j{0, slice.k_len};
  if (slice.left != kInfinity) j.begin = std::max(j.begin, level - slice.left);
  if (slice.right != kInfinity) j.end = std::min(j.end, level + slice.right + 1);
  return {slice.k_begin + j.begin, slice.k_begin + j.end};
}

bool meet(std::int64_t begin, std::int64_t length, Range range) {
  return begin < range.end && range.begin < begin + length;
}

}  // namespace

Runs find_runs(std::span<const Slice> slices, Range rows, Range keys) {
  std::vector<Slice> near;
  for (const Slice& slice : slices) {
    if (meet(slice.q_begin, slice.q_len, rows) && meet(slice.k_begin, slice.k_len, keys)) near.push_back(slice);
  }
  constexpr std::int64_t most = std::numeric_limits<std::int64_t>::max();
  Runs runs{{}, {most, 0}, {most, 0}};
  for (std::int64_t row = rows.begin; row < rows.end; ++row) {
    for (const Slice& slice : near) {
      if (row < slice.q_begin || row >= slice.q_begin + slice.q_len) continue;
      const Range seen = visible_keys(slice, row);
      const Run run{row, std::max(seen.begin, keys.begin), std::min(seen.end, keys.end)};
      if (run.begin >= run.end) continue;
      runs.list.push_back(run);
      runs.rows = {std::min(runs.rows.begin, row), row + 1};
      runs.keys = {std::min(runs.keys.begin, run.begin), std::max(runs.keys.end, run.end)};
    }
  }
  if (runs.list.empty()) runs.rows = runs.keys = {0, 0};
  return runs;
}

}  // namespace rotunda::oracle_detail
