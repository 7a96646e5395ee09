#include "base/copy.hpp"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <limits>
#include <vector>

#include "base/half.hpp"
#include "support/error_test.hpp"

namespace rotunda {
namespace {

constexpr std::array kLayouts{Layout::bshd, Layout::sbhd, Layout::bhsd};

/// Memory with a view, and elements by index.
template <class T>
struct Store {
  std::vector<T> values;
  TensorView view;

  T& at(std::int64_t b, std::int64_t row, std::int64_t head, std::int64_t dim) const {
    return view.at<T>(b, row, head)[dim * view.stride[3]];
  }
};

DType dtype_of(float) {
  return DType::fp32;
}
DType dtype_of(bf16_t) {
  return DType::bf16;
}
DType dtype_of(fp16_t) {
  return DType::fp16;
}

/// In `layout`, each dim row padded by `pad` elements, element values 0, 1, 2, … (exact in every dtype up to 256).
template <class T>
Store<T> make(Layout layout, std::array<std::int64_t, 4> shape, std::int64_t pad = 0, std::int64_t spread = 1) {
  const auto [b, s, h, d] = shape;
  Store<T> store;
  store.view = make_view(nullptr, dtype_of(T{}), layout, b, s, h, d * spread + pad);
  store.values.resize(static_cast<std::size_t>(b * s * h * (d * spread + pad)));
  for (std::size_t i = 0; i < store.values.size(); ++i) store.values[i] = T(static_cast<float>(i % 251));
  store.view.data = store.values.data();
  store.view.shape[3] = d;
  store.view.stride[3] = spread;
  return store;
}

template <class From, class To>
std::int64_t differences(const Store<From>& from, const Store<To>& to) {
  const auto [b, s, h, d] = from.view.shape;
  std::int64_t wrong = 0;
  for (std::int64_t i = 0; i < b; ++i)
    for (std::int64_t j = 0; j < s; ++j)
      for (std::int64_t k = 0; k < h; ++k)
        for (std::int64_t l = 0; l < d; ++l)
          wrong += static_cast<float>(from.at(i, j, k, l)) != static_cast<float>(to.at(i, j, k, l)) ? 1 : 0;
  return wrong;
}

template <class T>
void check_copies() {
  for (const auto shape : {std::array<std::int64_t, 4>{2, 3, 4, 5}, {1, 7, 1, 8}, {3, 1, 2, 1}, {1, 1, 1, 1}}) {
    for (const Layout a : kLayouts) {
      for (const Layout b : kLayouts) {
        for (const std::int64_t pad : {0, 3}) {
          for (const std::int64_t spread : {1, 2}) {
            const auto from = make<T>(a, shape, pad, spread);
            auto to = make<T>(b, shape, 3 - pad, 3 - spread);
            for (auto& value : to.values) value = T(-1.0F);
            copy(from.view, to.view);
            EXPECT_EQ(differences(from, to), 0) << to_string(a) << " to " << to_string(b);
            // What lies between the view's elements is untouched.
            std::int64_t touched = 0;
            for (const auto& value : to.values) touched += static_cast<float>(value) != -1.0F ? 1 : 0;
            EXPECT_EQ(touched, to.view.elements());
          }
        }
      }
    }
  }
}

TEST(Copy, EveryPairOfLayoutsAndStrides) {
  check_copies<float>();
  check_copies<bf16_t>();
  check_copies<fp16_t>();
}

TEST(Copy, CarriesBits) {
  std::vector<std::uint32_t> nan{0x7fa12345, 0xffc00001, 0x80000000, 0x00000001}, got(4);
  copy(make_view(nan.data(), DType::fp32, Layout::bshd, 1, 4, 1, 1),
       make_view(got.data(), DType::fp32, Layout::bshd, 1, 4, 1, 1));
  EXPECT_EQ(got, nan);
}

TEST(Copy, NarrowedViews) {
  const auto from = make<float>(Layout::bhsd, {2, 6, 4, 3});
  auto to = make<float>(Layout::bshd, {2, 2, 3, 3});
  copy(from.view.narrow_rows(3, 2).narrow_heads(1, 3), to.view);
  EXPECT_EQ(to.at(1, 0, 0, 2), from.at(1, 3, 1, 2));
  EXPECT_EQ(to.at(0, 1, 2, 0), from.at(0, 4, 3, 0));
}

TEST(Copy, NothingAndItself) {
  copy(make_view(nullptr, DType::bf16, Layout::bshd, 2, 0, 4, 8),
       make_view(nullptr, DType::bf16, Layout::bhsd, 2, 0, 4, 8));
  auto same = make<float>(Layout::bshd, {1, 4, 2, 3});
  const auto before = same.values;
  copy(same.view, same.view);
  EXPECT_EQ(same.values, before);
}

TEST(Copy, RefusesWhatDiffers) {
  const auto a = make<float>(Layout::bshd, {1, 2, 3, 4});
  const auto b = make<float>(Layout::bshd, {1, 2, 3, 5});
  const auto c = make<bf16_t>(Layout::bshd, {1, 2, 3, 4});
  EXPECT_ERROR(copy(a.view, b.view), ErrorKind::internal, "fp32[1, 2, 3, 4] to fp32[1, 2, 3, 5]");
  EXPECT_ERROR(copy(a.view, c.view), ErrorKind::internal, "fp32[1, 2, 3, 4] to bf16[1, 2, 3, 4]");
  EXPECT_ERROR(convert(a.view, b.view), ErrorKind::internal, "fp32[1, 2, 3, 4] to fp32[1, 2, 3, 5]");
}

template <class From, class To>
void check_conversions() {
  for (const Layout a : kLayouts) {
    for (const std::int64_t spread : {1, 2}) {
      const auto from = make<From>(a, {2, 3, 4, 5}, 1, spread);
      auto to = make<To>(Layout::sbhd, {2, 3, 4, 5}, 0, 3 - spread);
      for (auto& value : to.values) value = To(-1.0F);
      convert(from.view, to.view);
      EXPECT_EQ(differences(from, to), 0);
    }
  }
}

TEST(Convert, BetweenAllDtypes) {
  check_conversions<float, float>();
  check_conversions<float, bf16_t>();
  check_conversions<float, fp16_t>();
  check_conversions<bf16_t, float>();
  check_conversions<bf16_t, bf16_t>();
  check_conversions<bf16_t, fp16_t>();
  check_conversions<fp16_t, float>();
  check_conversions<fp16_t, bf16_t>();
  check_conversions<fp16_t, fp16_t>();
}

TEST(Convert, RoundsToNearestEven) {
  std::vector<float> wide{
      1.0F + 0x1p-8F, 1.0F + 0x3p-8F, -1.0F - 0x1.8p-8F, 1e30F, std::numeric_limits<float>::infinity(), NAN};
  std::vector<bf16_t> bf16(wide.size());
  std::vector<fp16_t> fp16(wide.size());
  const auto n = static_cast<std::int64_t>(wide.size());
  const auto view = make_view(wide.data(), DType::fp32, Layout::bshd, 1, n, 1, 1);
  convert(view, make_view(bf16.data(), DType::bf16, Layout::bshd, 1, n, 1, 1));
  convert(view, make_view(fp16.data(), DType::fp16, Layout::bshd, 1, n, 1, 1));
  EXPECT_EQ(static_cast<float>(bf16[0]), 1.0F);             // a tie, to even
  EXPECT_EQ(static_cast<float>(bf16[1]), 1.0F + 0x1p-6F);   // a tie, to even
  EXPECT_EQ(static_cast<float>(bf16[2]), -1.0F - 0x1p-7F);  // above a tie
  EXPECT_EQ(static_cast<float>(fp16[0]), wide[0]);
  EXPECT_EQ(static_cast<float>(fp16[3]), std::numeric_limits<float>::infinity());
  EXPECT_EQ(static_cast<float>(bf16[4]), std::numeric_limits<float>::infinity());
  EXPECT_TRUE(std::isnan(static_cast<float>(bf16[5])) && std::isnan(static_cast<float>(fp16[5])));
}

}  // namespace
}  // namespace rotunda
