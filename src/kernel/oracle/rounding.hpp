// The two arithmetics of the oracle: exact (float64, no rounding) and naive (fp32, results rounded to a dtype).
#pragma once

#include "base/half.hpp"
#include "rotunda/tensor.hpp"

namespace rotunda::oracle_detail {

inline constexpr double kFp32Rounding = 0x1p-24;  // greatest relative error of one fp32 rounding

/// Greatest relative error of one rounding to the dtype.
[[nodiscard]] inline double rounding(DType dtype) {
  switch (dtype) {
    case DType::bf16: return 0x1p-8;
    case DType::fp16: return 0x1p-11;
    case DType::fp32: break;
  }
  return kFp32Rounding;
}

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
