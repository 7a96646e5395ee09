// Which layouts fold a batch into rows or heads.
#include "kernel/fa4/fold.hpp"

#include <gtest/gtest.h>

#include <array>

namespace rotunda::fa4 {
namespace {

TensorView view(Layout layout, std::int64_t b, std::int64_t s, std::int64_t h, std::int64_t d) {
  static std::array<std::byte, 64> memory;
  return make_view(memory.data(), DType::bf16, layout, b, s, h, d);
}

/// Element [b, row, head, 0] lies where the folded tensor says.
void expect_same_places(const TensorView& v, const Fold& fold) {
  const Tensor3 t = folded(v, fold);
  for (std::int64_t b = 0; b < v.batch(); ++b) {
    for (std::int64_t row = 0; row < v.rows(); ++row) {
      for (std::int64_t head = 0; head < v.heads(); ++head) {
        const std::int64_t i = b * fold.rows + row, j = b * fold.heads + head;
        EXPECT_LT(i, t.shape[0]);
        EXPECT_LT(j, t.shape[1]);
        EXPECT_EQ(i * t.stride[0] + j * t.stride[1], b * v.stride[0] + row * v.stride[1] + head * v.stride[2]);
      }
    }
  }
}

TEST(Fa4Fold, EveryLayoutFolds) {
  for (const Layout layout : {Layout::bshd, Layout::sbhd, Layout::bhsd}) {
    for (const std::int64_t heads : {1, 3}) {
      for (const std::int64_t rows : {1, 5}) {
        const TensorView v = view(layout, 4, rows, heads, 16);
        const auto fold = common_fold(std::array{v, v});
        ASSERT_TRUE(fold) << to_string(layout);
        expect_same_places(v, *fold);
      }
    }
  }
}

TEST(Fa4Fold, WholeTensorsEndWithTheSlice) {
  const TensorView v = view(Layout::sbhd, 4, 5, 1, 16);
  const Tensor4 t = whole(v, 3);
  EXPECT_EQ(t.shape[0], 4);
  EXPECT_EQ(t.shape[1], 3);
  EXPECT_EQ(t.stride[0], v.stride[0]);
  EXPECT_EQ(t.stride[1], v.stride[1]);
  EXPECT_GE(t.stride[2], 8) << "an axis of 1 has a stride, too";
}

TEST(Fa4Fold, OneEntryAlwaysFolds) {
  TensorView v = view(Layout::bshd, 1, 5, 3, 16);
  v.stride[0] = 7;
  EXPECT_EQ(common_fold(std::array{v, view(Layout::bhsd, 1, 5, 3, 16)}), Fold{});
}

TEST(Fa4Fold, TensorsThatLieOtherwiseDoNotFoldTogether) {
  EXPECT_EQ(common_fold(std::array{view(Layout::bshd, 2, 5, 3, 16), view(Layout::sbhd, 2, 5, 3, 16)}), std::nullopt);
  TensorView odd = view(Layout::bshd, 2, 5, 3, 16);
  odd.stride[0] += 8;  // room between entries that is neither rows nor heads
  EXPECT_EQ(common_fold(std::array{odd}), std::nullopt);
  const TensorView second = entry(odd, 1);
  EXPECT_EQ(second.batch(), 1);
  EXPECT_EQ(second.at<std::uint16_t>(0, 0, 0), odd.at<std::uint16_t>(1, 0, 0));
}

}  // namespace
}  // namespace rotunda::fa4
