#include "rotunda/tensor.hpp"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

namespace rotunda {
namespace {

std::vector<float> numbers(std::size_t count) {
  std::vector<float> values(count);
  std::iota(values.begin(), values.end(), 0.0F);
  return values;
}

TEST(TensorView, LayoutsPlaceTheAxes) {
  auto values = numbers(2 * 3 * 4 * 5);
  // Element [b 1, row 2, head 3, dim 4]: the last of everything but the layout's order.
  const auto index = [&](Layout layout, std::int64_t b, std::int64_t row, std::int64_t head) {
    return *make_view(values.data(), DType::fp32, layout, 2, 3, 4, 5).at<float>(b, row, head);
  };
  EXPECT_EQ(index(Layout::bshd, 1, 2, 3), ((1 * 3 + 2) * 4 + 3) * 5);
  EXPECT_EQ(index(Layout::sbhd, 1, 2, 3), ((2 * 2 + 1) * 4 + 3) * 5);
  EXPECT_EQ(index(Layout::bhsd, 1, 2, 3), ((1 * 4 + 3) * 3 + 2) * 5);
  EXPECT_EQ(index(Layout::sbhd, 1, 0, 0), 4 * 5);
  EXPECT_EQ(*make_view(values.data(), DType::fp32, Layout::thd, 1, 6, 4, 5).at<float>(0, 5, 3), (5 * 4 + 3) * 5);
  EXPECT_EQ(*make_row_view(values.data(), 2, 3, 4).at<float>(1, 2, 3), (1 * 4 + 3) * 3 + 2);
}

TEST(TensorView, Shapes) {
  const TensorView view = make_view(nullptr, DType::bf16, Layout::bhsd, 2, 3, 4, 5);
  EXPECT_EQ(view.batch(), 2);
  EXPECT_EQ(view.rows(), 3);
  EXPECT_EQ(view.heads(), 4);
  EXPECT_EQ(view.dim(), 5);
  EXPECT_EQ(view.elements(), 120);
  EXPECT_EQ(view.bytes(), 240);
  EXPECT_FALSE(view.empty());
  EXPECT_TRUE(view.narrow_rows(1, 0).empty());
  EXPECT_TRUE(TensorView{}.empty());
  EXPECT_EQ(describe(view), "bf16[2, 3, 4, 5]");
  EXPECT_EQ(make_row_view(nullptr, 2, 3, 4).dim(), 1);
}

TEST(TensorView, NarrowsBatchRowsAndHeads) {
  auto values = numbers(2 * 6 * 4 * 5);
  for (const Layout layout : {Layout::bshd, Layout::sbhd, Layout::bhsd}) {
    const TensorView whole = make_view(values.data(), DType::fp32, layout, 2, 6, 4, 5);
    const TensorView part = whole.narrow_rows(2, 3).narrow_heads(1, 2);
    EXPECT_EQ(part.shape, (std::array<std::int64_t, 4>{2, 3, 2, 5}));
    EXPECT_EQ(part.at<float>(1, 2, 1), whole.at<float>(1, 4, 2));
    EXPECT_EQ(whole.narrow_batch(1, 1).at<float>(0, 4, 2), whole.at<float>(1, 4, 2));
    EXPECT_EQ(part.narrow_rows(1, 1).at<float>(0, 0, 0), whole.at<float>(0, 3, 1));
  }
  std::vector<std::uint16_t> halves(24);
  const TensorView view = make_view(halves.data(), DType::fp16, Layout::bshd, 1, 3, 2, 4);
  EXPECT_EQ(view.narrow_rows(1, 2).data, halves.data() + 8);
  EXPECT_EQ(view.narrow_heads(1, 1).data, halves.data() + 4);
  EXPECT_EQ(TensorView{}.narrow_rows(1, 2).data, nullptr);
}

TEST(DTypes, NamesAndSizes) {
  EXPECT_STREQ(to_string(DType::bf16), "bf16");
  EXPECT_STREQ(to_string(DType::fp16), "fp16");
  EXPECT_STREQ(to_string(DType::fp32), "fp32");
  EXPECT_EQ(size_of(DType::bf16), 2U);
  EXPECT_EQ(size_of(DType::fp16), 2U);
  EXPECT_EQ(size_of(DType::fp32), 4U);
  EXPECT_STREQ(to_string(Layout::bshd), "bshd");
  EXPECT_STREQ(to_string(Layout::sbhd), "sbhd");
  EXPECT_STREQ(to_string(Layout::bhsd), "bhsd");
  EXPECT_STREQ(to_string(Layout::thd), "thd");
}

}  // namespace
}  // namespace rotunda
