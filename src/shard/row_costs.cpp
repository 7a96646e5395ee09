#include "shard/row_costs.hpp"

#include <algorithm>

#include "problem/band.hpp"

namespace rotunda {

RowCosts::RowCosts(std::span<const Slice> slices, Side side) {
  for (const Slice& slice : slices) {
    if (is_empty(slice)) continue;  // its band may be crossed, which the difference of ramps cannot say
    const Band b = band(slice);
    if (side == Side::query) {
      add_ramp(slice.q_begin, slice.q_len, slice.k_len, b.high + 1, +1);
      add_ramp(slice.q_begin, slice.q_len, slice.k_len, b.low, -1);
    } else {  // column j is seen by rows j - high .. j - low: the same with the band turned over
      add_ramp(slice.k_begin, slice.k_len, slice.q_len, 1 - b.low, +1);
      add_ramp(slice.k_begin, slice.k_len, slice.q_len, -b.high, -1);
    }
  }
  std::ranges::sort(corners_, {}, &Corner::row);
  // The corners hold changes so far; add them up, corners of one row into one.
  std::vector<Corner> sums;
  for (const Corner& change : corners_) {
    if (sums.empty() || sums.back().row != change.row) {
      Corner next{change.row, 0, 0, 0};
      if (!sums.empty()) {
        const Corner& last = sums.back();
        const auto rows = static_cast<double>(change.row - last.row);
        next = {change.row, last.value + last.slope * rows, last.slope,
                last.sum + last.value * rows + last.slope * (rows * (rows - 1) / 2)};
      }
      sums.push_back(next);
    }
    sums.back().value += change.value;
    sums.back().slope += change.slope;
  }
  corners_ = std::move(sums);
}

/// Adds sign·clamp(i + shift, 0, columns) for the rows i of [begin, begin + rows), i counted from begin.
void RowCosts::add_ramp(std::int64_t begin, std::int64_t rows, std::int64_t columns, std::int64_t shift, int sign) {
  const auto at = [&](std::int64_t i) {
    return static_cast<double>(sign * std::clamp<std::int64_t>(i + shift, 0, columns));
  };
  const std::int64_t rises = std::clamp<std::int64_t>(-shift, 0, rows);
  const std::int64_t levels = std::clamp<std::int64_t>(columns - shift, 0, rows);
  corners_.push_back({begin, at(0), 0, 0});
  corners_.push_back({begin + rises, 0, static_cast<double>(sign), 0});
  corners_.push_back({begin + levels, 0, static_cast<double>(-sign), 0});
  corners_.push_back({begin + rows, -at(rows), 0, 0});
}

double RowCosts::before(std::int64_t row) const {
  auto corner = std::ranges::upper_bound(corners_, row, {}, &Corner::row);
  if (corner == corners_.begin()) return 0;
  --corner;
  const auto rows = static_cast<double>(row - corner->row);
  return corner->sum + corner->value * rows + corner->slope * (rows * (rows - 1) / 2);
}

}  // namespace rotunda
