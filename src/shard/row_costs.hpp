// What rows cost: visible pairs of a range of query rows or of keys, in closed form.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "rotunda/problem.hpp"

namespace rotunda {

/// Pairs of the rows of one side (keys that a query row sees; query rows that see a key), summed over batch entries.
/// Built in O(n log n) for n slices, asked in O(log n). Counts are doubles: whole numbers, exact below 2^53.
///
/// Row i of a slice sees clamp(i + high + 1, 0, k_len) - clamp(i + low, 0, k_len) keys, which is linear in i between at
/// most four corners. So the cost of a row is linear between the corners of all slices, and its running sum quadratic.
class RowCosts {
 public:
  RowCosts(std::span<const Slice> slices, Side side);

  /// Pairs of the rows [begin, begin + len).
  [[nodiscard]] double of(std::int64_t begin, std::int64_t len) const { return before(begin + len) - before(begin); }

 private:
  /// From `row` on, row + t costs value + slope·t; all rows before it cost `sum` together.
  struct Corner {
    std::int64_t row = 0;
    double value = 0, slope = 0, sum = 0;
  };

  void add_ramp(std::int64_t begin, std::int64_t rows, std::int64_t columns, std::int64_t shift, int sign);
  [[nodiscard]] double before(std::int64_t row) const;

  std::vector<Corner> corners_;
};

}  // namespace rotunda
