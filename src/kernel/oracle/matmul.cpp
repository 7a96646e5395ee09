#include "kernel/oracle/matmul.hpp"
#include "kernel/targets.hpp"

#include <algorithm>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernel/oracle/matmul.cpp"
#include <hwy/foreach_target.h>
// After foreach_target:
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace rotunda::oracle_detail {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// Rows of b that stay in the cache while the rows of a pass by.
constexpr std::int64_t kDepth = 256;

/// One register block: kRows rows of c, kVectors vectors wide, from k products.
template <int kRows, int kVectors, class D, class T = hn::TFromD<D>>
HWY_INLINE void block(D d, const Product<T>& x, const T* a, const T* b, T* c, std::int64_t k) {
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  hn::Vec<D> sum[kRows][kVectors];
  for (int i = 0; i < kRows; ++i) {
    for (int v = 0; v < kVectors; ++v) sum[i][v] = hn::LoadU(d, c + i * x.c_row + v * lanes);
  }
  for (std::int64_t p = 0; p < k; ++p) {
    hn::Vec<D> right[kVectors];
    for (int v = 0; v < kVectors; ++v) right[v] = hn::LoadU(d, b + p * x.b_row + v * lanes);
    for (int i = 0; i < kRows; ++i) {
      const auto left = hn::Set(d, a[i * x.a_row + p]);
      for (int v = 0; v < kVectors; ++v) sum[i][v] = hn::MulAdd(left, right[v], sum[i][v]);
    }
  }
  for (int i = 0; i < kRows; ++i) {
    for (int v = 0; v < kVectors; ++v) hn::StoreU(sum[i][v], d, c + i * x.c_row + v * lanes);
  }
}

/// All rows of c, kVectors vectors wide from column j, for products [p, p + k).
template <int kVectors, class D, class T = hn::TFromD<D>>
void panel(D d, const Product<T>& x, std::int64_t j, std::int64_t p, std::int64_t k) {
  const T* b = x.b + p * x.b_row + j;
  std::int64_t i = 0;
  for (; i + 4 <= x.m; i += 4) {
    block<4, kVectors>(d, x, x.a + i * x.a_row + p, b, x.c + i * x.c_row + j, k);
  }
  for (; i < x.m; ++i) block<1, kVectors>(d, x, x.a + i * x.a_row + p, b, x.c + i * x.c_row + j, k);
}

template <class T>
void product(const Product<T>& x) {
  const hn::CappedTag<T, 64 / sizeof(T)> d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  for (std::int64_t p = 0; p < x.k; p += kDepth) {
    const std::int64_t k = std::min(kDepth, x.k - p);
    std::int64_t j = 0;
    for (; j + 3 * lanes <= x.n; j += 3 * lanes) panel<3>(d, x, j, p, k);
    for (; j < x.n; j += lanes) panel<1>(d, x, j, p, k);
  }
}

void product_double(const Product<double>& x) {
  product(x);
}
void product_float(const Product<float>& x) {
  product(x);
}

}  // namespace HWY_NAMESPACE
}  // namespace rotunda::oracle_detail
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace rotunda::oracle_detail {

HWY_EXPORT(product_double);
HWY_EXPORT(product_float);

void multiply_add(const Product<double>& x) {
  HWY_DYNAMIC_DISPATCH(product_double)(x);
}
void multiply_add(const Product<float>& x) {
  HWY_DYNAMIC_DISPATCH(product_float)(x);
}

}  // namespace rotunda::oracle_detail
#endif
