// The running LSE of a row between calls: fp32 and the part that fp32 lacks, so that a ring of many steps loses no more
// than one call does.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

#include "kernel/kernel.hpp"

namespace rotunda {

/// The LSE of the state so far.
[[nodiscard]] inline double load_lse(const ForwardArgs& args, std::int64_t b, std::int64_t row, std::int64_t head) {
  const double lse = *args.lse.at<float>(b, row, head);
  const bool whole = args.lse_low.data == nullptr || lse == -std::numeric_limits<double>::infinity();
  return whole ? lse : lse + *args.lse_low.at<float>(b, row, head);
}

inline void store_lse(const ForwardArgs& args, std::int64_t b, std::int64_t row, std::int64_t head, double lse) {
  const auto high = static_cast<float>(lse);
  *args.lse.at<float>(b, row, head) = high;
  if (args.last || args.lse_low.data == nullptr) return;
  const double low = lse - static_cast<double>(high);
  *args.lse_low.at<float>(b, row, head) = lse == -std::numeric_limits<double>::infinity() ? 0 : static_cast<float>(low);
}

/// The greater one, for max_logit. NaN stays.
template <class Real>
[[nodiscard]] Real greater(Real a, Real b) {
  return std::isnan(a) || a > b ? a : b;
}

}  // namespace rotunda
