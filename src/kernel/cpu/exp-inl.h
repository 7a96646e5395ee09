// Powers of 2 for vectors of floats. Included once per instruction set (no plain guard).
#if defined(ROTUNDA_CPU_EXP_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ROTUNDA_CPU_EXP_INL_H_
#undef ROTUNDA_CPU_EXP_INL_H_
#else
#define ROTUNDA_CPU_EXP_INL_H_
#endif

#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace rotunda::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using Floats = hn::ScalableTag<float>;
using Ints = hn::RebindToSigned<Floats>;
using Vec = hn::Vec<Floats>;

/// 2^(x·factor) for x·factor <= 1, about 1 ulp; 0 below 2^-126 and for x = -inf, exactly 1 at 0, NaN for any NaN.
/// x·factor = n + f with n whole and |f| <= 1/2; 2^f is a minimax polynomial (relative error 2e-9), 2^n is made of
/// bits.
HWY_INLINE Vec exp2_scaled(Vec x, Vec factor) {
  const Floats f;
  constexpr float magic = 0x1.8p23F + 127;  // adding it leaves n + 127, the exponent bits of 2^n, in the low bits
  const Vec shifted = hn::MulAdd(x, factor, hn::Set(f, magic));
  const Vec y = hn::MulSub(x, factor, hn::Sub(shifted, hn::Set(f, magic)));
  Vec p = hn::Set(f, 0x1.41fbbcp-13F);
  p = hn::MulAdd(p, y, hn::Set(f, 0x1.5f3e52p-10F));
  p = hn::MulAdd(p, y, hn::Set(f, 0x1.3b2d4cp-7F));
  p = hn::MulAdd(p, y, hn::Set(f, 0x1.c6aee8p-5F));
  p = hn::MulAdd(p, y, hn::Set(f, 0x1.ebfbdcp-3F));
  p = hn::MulAdd(p, y, hn::Set(f, 0x1.62e430p-1F));
  p = hn::MulAdd(p, y, hn::Set(f, 1.0F));
  const Vec power = hn::BitCast(f, hn::ShiftLeft<23>(hn::BitCast(Ints(), shifted)));
  return hn::IfThenZeroElse(hn::Lt(shifted, hn::Set(f, magic - 126)), hn::Mul(p, power));
}

}  // namespace rotunda::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
