// 2^x for vectors of floats. Included once per instruction set (no plain guard).
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

/// 2^x for x <= 1, about 1 ulp; 0 below 2^-126 and for -inf, exactly 1 at 0, NaN for NaN. x = n + f with n whole and
/// |f| <= 1/2; 2^f is a minimax polynomial (relative error 2e-9) and n goes into the exponent bits.
HWY_INLINE Vec exp2(Vec x) {
  const Floats f;
  const Ints i;
  const Vec magic = hn::Set(f, 0x1.8p23F);  // adding it leaves round(x) in the low bits
  const Vec shifted = hn::Add(x, magic);
  const Vec y = hn::Sub(x, hn::Sub(shifted, magic));
  Vec p = hn::Set(f, 0x1.41fbbcp-13F);
  p = hn::MulAdd(p, y, hn::Set(f, 0x1.5f3e52p-10F));
  p = hn::MulAdd(p, y, hn::Set(f, 0x1.3b2d4cp-7F));
  p = hn::MulAdd(p, y, hn::Set(f, 0x1.c6aee8p-5F));
  p = hn::MulAdd(p, y, hn::Set(f, 0x1.ebfbdcp-3F));
  p = hn::MulAdd(p, y, hn::Set(f, 0x1.62e430p-1F));
  p = hn::MulAdd(p, y, hn::Set(f, 1.0F));
  const auto exponent = hn::ShiftLeft<23>(hn::BitCast(i, shifted));
  const Vec result = hn::BitCast(f, hn::Add(hn::BitCast(i, p), exponent));
  return hn::IfThenZeroElse(hn::Lt(x, hn::Set(f, -126.0F)), result);
}

}  // namespace rotunda::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
