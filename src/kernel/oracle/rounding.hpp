// The two arithmetics of the oracle: exact (float64, no rounding) and naive (fp32, results rounded to a dtype).
#pragma once

#include "base/half.hpp"

namespace rotunda::oracle_detail {

struct Exact {
  using Real = double;
  static constexpr bool kIsExact = true;
  [[nodiscard]] static double round(double x) { return x; }
};

template <class Element>
struct Naive {
  using Real = float;
  static constexpr bool kIsExact = false;
  [[nodiscard]] static float round(float x) { return static_cast<float>(Element(x)); }
};

}  // namespace rotunda::oracle_detail
