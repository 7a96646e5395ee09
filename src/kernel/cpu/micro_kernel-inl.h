// The one product that everything here is made of: C[rows × panel] += A[rows × depth] · B[depth × panel], a panel being
// two vectors. Included once per instruction set (no plain guard).
#if defined(ROTUNDA_CPU_MICRO_KERNEL_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ROTUNDA_CPU_MICRO_KERNEL_INL_H_
#undef ROTUNDA_CPU_MICRO_KERNEL_INL_H_
#else
#define ROTUNDA_CPU_MICRO_KERNEL_INL_H_
#endif

#include <hwy/highway.h>

#include <cstdint>

#include "kernel/cpu/exp-inl.h"

HWY_BEFORE_NAMESPACE();
namespace rotunda::cpu::HWY_NAMESPACE {

inline constexpr int kLanes = static_cast<int>(hn::MaxLanes(Floats()));
inline constexpr int kPanel = 2 * kLanes;
/// 6 rows × 2 vectors are 12 sums; with 2 of B and 1 of A they fill 15 of 16 registers.
inline constexpr int kRows = 6;

/// How A lies in memory: element (row, k) at row·ld + k or at k·ld + row.
enum class Major { row, depth };

/// What C starts from: nothing, itself, or itself times `scale` (one factor a lane).
enum class Start { zero, add, scaled };

struct Matrix {
  const float* data;
  std::int64_t ld;
};

struct Target {
  float* data;
  std::int64_t ld;
  Start start = Start::add;
  const float* scale = nullptr;
};

/// C's part is added last: a block of depth is summed from 0, which loses less than one long chain.
HWY_INLINE void finish_sum(Vec sum, const Target& c, std::int64_t offset, int lane) {
  const Floats f;
  float* const to = c.data + offset + lane;
  if (c.start == Start::add) sum = hn::Add(sum, hn::LoadU(f, to));
  if (c.start == Start::scaled) sum = hn::MulAdd(hn::LoadU(f, to), hn::LoadU(f, c.scale + lane), sum);
  hn::StoreU(sum, f, to);
}

/// depth >= 1. B's rows and C are read a panel wide.
template <Major kMajor, int kCount>
HWY_NOINLINE void micro_kernel(Matrix a, Matrix b, std::int64_t depth, const Target& c) {
  const Floats f;
  Vec sum[kCount][2];
  HWY_UNROLL(6)
  for (int r = 0; r < kCount; ++r) sum[r][0] = sum[r][1] = hn::Zero(f);
  const float* HWY_RESTRICT x = a.data;
  const float* HWY_RESTRICT y = b.data;
  do {
    const Vec y0 = hn::LoadU(f, y);
    const Vec y1 = hn::LoadU(f, y + kLanes);
    HWY_UNROLL(6)
    for (int r = 0; r < kCount; ++r) {
      const Vec broadcast = hn::Set(f, kMajor == Major::row ? x[r * a.ld] : x[r]);
      sum[r][0] = hn::MulAdd(broadcast, y0, sum[r][0]);
      sum[r][1] = hn::MulAdd(broadcast, y1, sum[r][1]);
    }
    x += kMajor == Major::row ? 1 : a.ld;
    y += b.ld;
  } while (--depth != 0);
  HWY_UNROLL(6)
  for (int r = 0; r < kCount; ++r) {
    finish_sum(sum[r][0], c, r * c.ld, 0);
    finish_sum(sum[r][1], c, r * c.ld, kLanes);
  }
}

template <Major kMajor>
HWY_INLINE void micro_kernel_of(int count, Matrix a, Matrix b, std::int64_t depth, const Target& c) {
  switch (count) {
    case 6: return micro_kernel<kMajor, 6>(a, b, depth, c);
    case 5: return micro_kernel<kMajor, 5>(a, b, depth, c);
    case 4: return micro_kernel<kMajor, 4>(a, b, depth, c);
    case 3: return micro_kernel<kMajor, 3>(a, b, depth, c);
    case 2: return micro_kernel<kMajor, 2>(a, b, depth, c);
    default: return micro_kernel<kMajor, 1>(a, b, depth, c);
  }
}

/// Rows of the next micro-kernel: 6, but 8 left are 4 + 4 and 7 are 4 + 3, as short ones wait for their sums.
HWY_INLINE int next_rows(std::int64_t left) {
  if (left == 7 || left == 8) return 4;
  return left < kRows ? static_cast<int>(left) : kRows;
}

/// One panel of C for any number of rows.
template <Major kMajor>
HWY_INLINE void multiply(std::int64_t rows, std::int64_t depth, Matrix a, Matrix b, Target c) {
  for (std::int64_t r = 0; r < rows;) {
    const int count = next_rows(rows - r);
    micro_kernel_of<kMajor>(count, a, b, depth, c);
    a.data += kMajor == Major::row ? count * a.ld : count;
    c.data += count * c.ld;
    r += count;
  }
}

/// A range of depth for each row of C, outside of which A is zero or need not count; empty ones are left out.
struct DepthRanges {
  const std::int32_t *from, *to;
};

/// C[rows × columns] += A·B, panel by panel, each group of rows over the depths that any of its rows wants.
template <Major kMajor>
HWY_NOINLINE void multiply_ranged(std::int64_t rows, int columns, Matrix a, Matrix b, Target c, DepthRanges ranges) {
  for (int column = 0; column < columns; column += kPanel) {
    for (std::int64_t r = 0; r < rows;) {
      const int count = next_rows(rows - r);
      std::int32_t from = INT32_MAX, to = 0;
      for (std::int64_t i = r; i < r + count; ++i) {
        if (ranges.from[i] >= ranges.to[i]) continue;
        from = HWY_MIN(from, ranges.from[i]);
        to = HWY_MAX(to, ranges.to[i]);
      }
      if (from < to) {
        const float* const first = kMajor == Major::row ? a.data + r * a.ld + from : a.data + from * a.ld + r;
        micro_kernel_of<kMajor>(count, {first, a.ld}, {b.data + from * b.ld + column, b.ld}, to - from,
                                {c.data + r * c.ld + column, c.ld, c.start, c.scale});
      }
      r += count;
    }
  }
}

}  // namespace rotunda::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
