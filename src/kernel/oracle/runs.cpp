#include "kernel/oracle/runs.hpp"

#include <algorithm>
#include <limits>
#include <numeric>

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

template <class Begin, class Length>
SliceIndex::Axis SliceIndex::axis(Begin begin, Length length) const {
  Axis axis;
  axis.order.resize(slices_.size());
  std::iota(axis.order.begin(), axis.order.end(), std::size_t{0});
  std::ranges::stable_sort(axis.order, {}, [&](std::size_t i) { return slices_[i].*begin; });
  std::int64_t latest = 0;
  for (const std::size_t i : axis.order) {
    latest = std::max(latest, slices_[i].*begin + slices_[i].*length);
    axis.begin.push_back(slices_[i].*begin);
    axis.end.push_back(latest);
  }
  return axis;
}

SliceIndex::SliceIndex(std::span<const Slice> slices)
    : slices_(slices), q_(axis(&Slice::q_begin, &Slice::q_len)), k_(axis(&Slice::k_begin, &Slice::k_len)) {}

std::span<const std::size_t> SliceIndex::Axis::candidates(Range range) const {
  const auto first = std::ranges::upper_bound(end, range.begin) - end.begin();
  const auto last = std::ranges::lower_bound(begin, range.end) - begin.begin();
  if (first >= last) return {};
  return std::span(order).subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(last - first));
}

std::vector<Slice> SliceIndex::meeting(Range rows, Range keys) const {
  const auto by_row = q_.candidates(rows), by_key = k_.candidates(keys);
  std::vector<std::size_t> found;
  for (const std::size_t i : by_row.size() < by_key.size() ? by_row : by_key) {
    const Slice& slice = slices_[i];
    if (meet(slice.q_begin, slice.q_len, rows) && meet(slice.k_begin, slice.k_len, keys)) found.push_back(i);
  }
  std::ranges::sort(found);
  std::vector<Slice> result;
  result.reserve(found.size());
  for (const std::size_t i : found) result.push_back(slices_[i]);
  return result;
}

Runs find_runs(const SliceIndex& slices, Range rows, Range keys) {
  const std::vector<Slice> near = slices.meeting(rows, keys);
  Range seeing{rows.end, rows.begin};  // rows that some slice near here holds
  for (const Slice& slice : near) {
    seeing.begin = std::min(seeing.begin, std::max(rows.begin, slice.q_begin));
    seeing.end = std::max(seeing.end, std::min(rows.end, slice.q_begin + slice.q_len));
  }
  constexpr std::int64_t most = std::numeric_limits<std::int64_t>::max();
  Runs runs{{}, {most, 0}, {most, 0}};
  for (std::int64_t row = seeing.begin; row < seeing.end; ++row) {
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
