// Arithmetic of a slice's band: which differences column - row are visible.
#pragma once

#include <cstdint>

#include "rotunda/problem.hpp"

namespace rotunda {

/// Row i of a slice sees column j iff low <= j - i <= high. Clamped to [-q_len, k_len]: beyond that nothing changes.
struct Band {
  std::int64_t low = 0, high = 0;
};

[[nodiscard]] Band band(const Slice& slice);

/// The slice without the rows at its ends that see nothing and the columns at its ends that nobody sees; q_len = 0
/// where no pair is visible.
[[nodiscard]] Slice trim(const Slice& slice);

/// No pair is visible.
[[nodiscard]] bool is_empty(const Slice& slice);

/// The slice of the rows [q, q + q_len) and columns [k, k + k_len), counted from the slice's first.
[[nodiscard]] Slice part(const Slice& slice, std::int64_t q, std::int64_t q_len, std::int64_t k, std::int64_t k_len);

/// Quotient rounded down, for either sign of `a`; `b` positive.
[[nodiscard]] constexpr std::int64_t floor_div(std::int64_t a, std::int64_t b) {
  return a / b - (a % b != 0 && a < 0 ? 1 : 0);
}

}  // namespace rotunda
