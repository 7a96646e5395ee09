// Scores of fp32 problems: products of floats summed in float64, where each product is exact, and rounded to fp32 once.
// Included once per instruction set (no plain guard).
#if defined(ROTUNDA_CPU_WIDE_PRODUCT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ROTUNDA_CPU_WIDE_PRODUCT_INL_H_
#undef ROTUNDA_CPU_WIDE_PRODUCT_INL_H_
#else
#define ROTUNDA_CPU_WIDE_PRODUCT_INL_H_
#endif

#include <hwy/highway.h>

#include <cstdint>

#include "kernel/cpu/micro_kernel-inl.h"

HWY_BEFORE_NAMESPACE();
namespace rotunda::cpu::HWY_NAMESPACE {

using Doubles = hn::ScalableTag<double>;
using HalfFloats = hn::Rebind<float, Doubles>;  ///< as many floats as a vector holds doubles

inline constexpr int kWideLanes = static_cast<int>(hn::MaxLanes(Doubles()));
inline constexpr int kWideVectors = kPanel / kWideLanes;  ///< of a panel: 4, or 2 where a vector is one element

/// Rows × 4 vectors are the sums: 24 of 32 registers, or 12 of 16.
#if HWY_ARCH_X86 && HWY_TARGET > HWY_AVX3
inline constexpr int kWideRows = 3;
#else
inline constexpr int kWideRows = 6;
#endif

/// A by rows; B is a panel, [depth][lane].
struct WideMatrix {
  const double* data;
  std::int64_t ld;
};

/// What becomes of the sums before they are rounded to C: factor·sum - offset of the lane, or the sums as they are.
struct WideTarget {
  float* data;
  std::int64_t ld;
  const double* offset = nullptr;  ///< [lane]
  double factor = 1;
};

/// n is rounded up to whole vectors of doubles.
HWY_INLINE void widen_floats(const float* from, std::int64_t n, double* to) {
  for (std::int64_t i = 0; i < n; i += kWideLanes) {
    hn::StoreU(hn::PromoteTo(Doubles(), hn::LoadU(HalfFloats(), from + i)), Doubles(), to + i);
  }
}

/// C[rows × panel] = A[rows × depth] · B[depth × panel]; depth >= 1.
template <int kCount>
HWY_NOINLINE void wide_micro_kernel(WideMatrix a, const double* HWY_RESTRICT panel, std::int64_t depth,
                                    const WideTarget& c) {
  const Doubles f;
  hn::Vec<Doubles> sum[kCount][kWideVectors];
  HWY_UNROLL(6)
  for (int r = 0; r < kCount; ++r) {
    for (int i = 0; i < kWideVectors; ++i) sum[r][i] = hn::Zero(f);
  }
  const double* HWY_RESTRICT x = a.data;
  do {
    hn::Vec<Doubles> broadcast[kCount];
    HWY_UNROLL(6)
    for (int r = 0; r < kCount; ++r) broadcast[r] = hn::Set(f, x[r * a.ld]);
    HWY_UNROLL(4)
    for (int i = 0; i < kWideVectors; ++i) {
      const hn::Vec<Doubles> y = hn::LoadU(f, panel + i * kWideLanes);
      HWY_UNROLL(6)
      for (int r = 0; r < kCount; ++r) sum[r][i] = hn::MulAdd(broadcast[r], y, sum[r][i]);
    }
    ++x;
    panel += kPanel;
  } while (--depth != 0);
  HWY_UNROLL(6)
  for (int r = 0; r < kCount; ++r) {
    for (int i = 0; i < kWideVectors; ++i) {
      hn::Vec<Doubles> value = sum[r][i];
      if (c.offset != nullptr) {
        value = hn::MulSub(value, hn::Set(f, c.factor), hn::LoadU(f, c.offset + i * kWideLanes));
      }
      hn::StoreU(hn::DemoteTo(HalfFloats(), value), HalfFloats(), c.data + r * c.ld + i * kWideLanes);
    }
  }
}

template <int kCount = kWideRows>
HWY_INLINE void wide_micro_kernel_of(int count, WideMatrix a, const double* panel, std::int64_t depth,
                                     const WideTarget& c) {
  if constexpr (kCount > 1) {
    if (count != kCount) return wide_micro_kernel_of<kCount - 1>(count, a, panel, depth, c);
  }
  wide_micro_kernel<kCount>(a, panel, depth, c);
}

/// One panel of C for any number of rows.
HWY_INLINE void multiply_wide(std::int64_t rows, std::int64_t depth, WideMatrix a, const double* panel, WideTarget c) {
  for (std::int64_t r = 0; r < rows; r += kWideRows) {
    const auto count = static_cast<int>(HWY_MIN(rows - r, kWideRows));
    wide_micro_kernel_of(count, a, panel, depth, c);
    a.data += count * a.ld;
    c.data += count * c.ld;
  }
}

}  // namespace rotunda::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
