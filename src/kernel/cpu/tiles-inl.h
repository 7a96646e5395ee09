// Rows in and out: any dtype to fp32 and back, and transposition between natural order [row][dim] and panels
// [dim][lane]. Included once per instruction set (no plain guard).
#if defined(ROTUNDA_CPU_TILES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ROTUNDA_CPU_TILES_INL_H_
#undef ROTUNDA_CPU_TILES_INL_H_
#else
#define ROTUNDA_CPU_TILES_INL_H_
#endif

#include <hwy/highway.h>

#include <cstdint>
#include <cstring>

#include "base/half.hpp"
#include "kernel/cpu/micro_kernel-inl.h"
#include "rotunda/tensor.hpp"

HWY_BEFORE_NAMESPACE();
namespace rotunda::cpu::HWY_NAMESPACE {

// F16C comes with AVX2; Highway's emulation elsewhere loses NaN.
#undef ROTUNDA_CPU_NATIVE_FP16
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2
#define ROTUNDA_CPU_NATIVE_FP16 1
#else
#define ROTUNDA_CPU_NATIVE_FP16 0
#endif

HWY_INLINE Vec load_floats(const float* p) {
  return hn::LoadU(Floats(), p);
}

HWY_INLINE Vec load_floats(const bf16_t* p) {
  const hn::Rebind<std::uint16_t, Floats> narrow;
  const hn::RebindToUnsigned<Floats> wide;
  const auto bits = hn::PromoteTo(wide, hn::LoadU(narrow, reinterpret_cast<const std::uint16_t*>(p)));
  return hn::BitCast(Floats(), hn::ShiftLeft<16>(bits));
}

HWY_INLINE Vec load_floats(const fp16_t* p) {
#if ROTUNDA_CPU_NATIVE_FP16
  const hn::Rebind<hwy::float16_t, Floats> narrow;
  return hn::PromoteTo(Floats(), hn::LoadU(narrow, reinterpret_cast<const hwy::float16_t*>(p)));
#else
  HWY_ALIGN float wide[kLanes];
  for (int i = 0; i < kLanes; ++i) wide[i] = static_cast<float>(p[i]);
  return hn::Load(Floats(), wide);
#endif
}

HWY_INLINE void store_floats(Vec v, float* p) {
  hn::StoreU(v, Floats(), p);
}

HWY_INLINE void store_floats(Vec v, bf16_t* p) {
  HWY_ALIGN float wide[kLanes];
  hn::Store(v, Floats(), wide);
  for (int i = 0; i < kLanes; ++i) p[i] = bf16_t(wide[i]);
}

HWY_INLINE void store_floats(Vec v, fp16_t* p) {
#if ROTUNDA_CPU_NATIVE_FP16
  const hn::Rebind<hwy::float16_t, Floats> narrow;
  hn::StoreU(hn::DemoteTo(narrow, v), narrow, reinterpret_cast<hwy::float16_t*>(p));
#else
  HWY_ALIGN float wide[kLanes];
  hn::Store(v, Floats(), wide);
  for (int i = 0; i < kLanes; ++i) p[i] = fp16_t(wide[i]);
#endif
}

/// to[0, n) = from, and zeros up to the next whole vector. Returns whether every value is finite.
template <class T>
HWY_INLINE bool widen_row(const T* from, int n, float* to) {
  const Floats f;
  Vec poison = hn::Zero(f);  // finite · 0 is 0; anything else is NaN and stays
  int i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const Vec v = load_floats(from + i);
    hn::StoreU(v, f, to + i);
    poison = hn::MulAdd(v, hn::Zero(f), poison);
  }
  if (i < n) {
    T tail[kLanes] = {};
    std::memcpy(tail, from + i, static_cast<std::size_t>(n - i) * sizeof(T));
    const Vec v = load_floats(tail);
    hn::StoreU(v, f, to + i);
    poison = hn::MulAdd(v, hn::Zero(f), poison);
  }
  return hn::AllTrue(f, hn::Eq(poison, hn::Zero(f)));
}

/// to[0, n) = from / divisor.
template <class T>
HWY_INLINE void narrow_row(const float* from, int n, float divisor, T* to) {
  const Vec by = hn::Set(Floats(), divisor);
  int i = 0;
  for (; i + kLanes <= n; i += kLanes) store_floats(hn::Div(load_floats(from + i), by), to + i);
  if (i < n) {
    T tail[kLanes];
    store_floats(hn::Div(load_floats(from + i), by), tail);
    std::memcpy(to + i, tail, static_cast<std::size_t>(n - i) * sizeof(T));
  }
}

/// Where a row of a view lies.
struct RowPlace {
  std::int64_t batch, row, head;
};

HWY_INLINE bool read_row(const TensorView& view, RowPlace at, float* to) {
  const int n = static_cast<int>(view.dim());
  switch (view.dtype) {
    case DType::bf16: return widen_row(view.at<bf16_t>(at.batch, at.row, at.head), n, to);
    case DType::fp16: return widen_row(view.at<fp16_t>(at.batch, at.row, at.head), n, to);
    case DType::fp32: break;
  }
  return widen_row(view.at<float>(at.batch, at.row, at.head), n, to);
}

/// `from` is read in whole vectors.
HWY_INLINE void write_row(const TensorView& view, RowPlace at, const float* from, float divisor) {
  const int n = static_cast<int>(view.dim());
  switch (view.dtype) {
    case DType::bf16: return narrow_row(from, n, divisor, view.at<bf16_t>(at.batch, at.row, at.head));
    case DType::fp16: return narrow_row(from, n, divisor, view.at<fp16_t>(at.batch, at.row, at.head));
    case DType::fp32: break;
  }
  narrow_row(from, n, divisor, view.at<float>(at.batch, at.row, at.head));
}

HWY_INLINE void fill(float* to, std::int64_t n, float value) {
  for (std::int64_t i = 0; i < n; ++i) to[i] = value;
}

/// to[column][row] = from[row][column] in blocks of 4 × 4: rows are a multiple of 4; columns are rounded up to one.
HWY_INLINE void transpose(Matrix from, int rows, int columns, float* to, std::int64_t to_ld) {
#if HWY_TARGET == HWY_SCALAR
  for (int r = 0; r < rows; ++r) {
    for (int c = 0; c < columns; ++c) to[c * to_ld + r] = from.data[r * from.ld + c];
  }
#else
  const hn::FixedTag<float, 4> four;
  for (int r = 0; r < rows; r += 4) {
    for (int c = 0; c < columns; c += 4) {
      const float* const p = from.data + r * from.ld + c;
      const auto r0 = hn::LoadU(four, p), r1 = hn::LoadU(four, p + from.ld);
      const auto r2 = hn::LoadU(four, p + 2 * from.ld), r3 = hn::LoadU(four, p + 3 * from.ld);
      const auto even_low = hn::InterleaveLower(four, r0, r2), odd_low = hn::InterleaveLower(four, r1, r3);
      const auto even_high = hn::InterleaveUpper(four, r0, r2), odd_high = hn::InterleaveUpper(four, r1, r3);
      float* const q = to + c * to_ld + r;
      hn::StoreU(hn::InterleaveLower(four, even_low, odd_low), four, q);
      hn::StoreU(hn::InterleaveUpper(four, even_low, odd_low), four, q + to_ld);
      hn::StoreU(hn::InterleaveLower(four, even_high, odd_high), four, q + 2 * to_ld);
      hn::StoreU(hn::InterleaveUpper(four, even_high, odd_high), four, q + 3 * to_ld);
    }
  }
#endif
}

/// Lanes [first, last) of a panel whose lane 0 is number `lane0`: the mask of one vector.
HWY_INLINE hn::Mask<Floats> lanes_between(int lane0, std::int32_t first, std::int32_t last) {
  const Ints i;
  const auto lane = hn::Add(hn::Iota(i, 0), hn::Set(i, lane0));
  const auto inside = hn::AndNot(hn::Gt(hn::Set(i, first), lane), hn::Gt(hn::Set(i, last), lane));
  return hn::RebindMask(Floats(), inside);
}

/// The keys of a tile that a panel has to look at, and whether every lane sees all of them.
struct PanelKeys {
  int from = 0, to = 0;
  bool full = true;
};

HWY_INLINE PanelKeys panel_keys(const std::int32_t* first, const std::int32_t* last, int keys, int lane0) {
  PanelKeys seen{keys, 0, true};
  std::int32_t latest_first = 0, earliest_last = INT32_MAX;
  for (int k = 0; k < keys; ++k) {
    latest_first = HWY_MAX(latest_first, first[k]);
    earliest_last = HWY_MIN(earliest_last, last[k]);
  }
  if (latest_first <= lane0 && earliest_last >= lane0 + kPanel) return {0, keys, true};
  for (int k = 0; k < keys; ++k) {
    if (first[k] >= last[k] || first[k] >= lane0 + kPanel || last[k] <= lane0) continue;
    seen.from = HWY_MIN(seen.from, k);
    seen.to = k + 1;
  }
  for (int k = seen.from; k < seen.to; ++k) {
    seen.full = seen.full && first[k] <= lane0 && last[k] >= lane0 + kPanel;
  }
  return seen;
}

}  // namespace rotunda::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
