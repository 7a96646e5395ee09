#include "problem/band.hpp"

#include <algorithm>

namespace rotunda {

Band band(const Slice& slice) {
  const std::int64_t shift = slice.k_pos - slice.q_pos;
  const std::int64_t low = slice.left == kInfinity ? -slice.q_len : -slice.left - shift;
  const std::int64_t high = slice.right == kInfinity ? slice.k_len : slice.right - shift;
  return {std::clamp(low, -slice.q_len, slice.k_len), std::clamp(high, -slice.q_len, slice.k_len)};
}

bool is_empty(const Slice& slice) {
  const Band b = band(slice);
  return slice.q_len <= 0 || slice.k_len <= 0 ||
         std::max(b.low, -(slice.q_len - 1)) > std::min(b.high, slice.k_len - 1);
}

Slice part(const Slice& slice, std::int64_t q, std::int64_t q_len, std::int64_t k, std::int64_t k_len) {
  Slice result = slice;
  result.q_begin += q;
  result.q_pos += q;
  result.q_len = q_len;
  result.k_begin += k;
  result.k_pos += k;
  result.k_len = k_len;
  return result;
}

Slice trim(const Slice& slice) {
  if (is_empty(slice)) return part(slice, 0, 0, 0, 0);
  const Band b = band(slice);
  const std::int64_t q_first = std::max<std::int64_t>(0, -b.high);
  const std::int64_t q_end = std::min(slice.q_len, slice.k_len - b.low);
  const std::int64_t k_first = std::max<std::int64_t>(0, b.low);
  const std::int64_t k_end = std::min(slice.k_len, slice.q_len + b.high);
  return part(slice, q_first, q_end - q_first, k_first, k_end - k_first);
}

namespace {

__extension__ using Wide = __int128;  // rows · columns may pass 64 bits

/// Pairs (i, j), 0 <= i < rows, 0 <= j < columns, with j - i <= c: Σ_i clamp(i + c + 1, 0, columns).
Wide pairs_up_to(std::int64_t rows, std::int64_t columns, std::int64_t c) {
  // Row i has i + c + 1 columns while that is between 1 and columns: rows [first, full); later ones have all.
  const std::int64_t first = std::clamp<std::int64_t>(-c, 0, rows);
  const std::int64_t full = std::clamp<std::int64_t>(columns - c - 1, first, rows);
  const Wide ramp = full - first;
  const Wide begin = first + c + 1;
  return ramp * begin + ramp * (ramp - 1) / 2 + Wide{rows - full} * columns;
}

Wide wide_pairs(const Slice& slice) {
  if (is_empty(slice)) return 0;
  const Band b = band(slice);
  return pairs_up_to(slice.q_len, slice.k_len, b.high) - pairs_up_to(slice.q_len, slice.k_len, b.low - 1);
}

}  // namespace

std::int64_t visible_pairs(const Slice& slice) {
  return static_cast<std::int64_t>(std::min<Wide>(wide_pairs(slice), kInfinity));
}

double count_pairs(const std::vector<Slice>& slices) {
  double sum = 0;
  for (const Slice& slice : slices) sum += static_cast<double>(wide_pairs(slice));
  return sum;
}

}  // namespace rotunda
