// The choice of 32-bit offsets; no device needed.
#include "base/cuda/index.hpp"

#include <gtest/gtest.h>

namespace rotunda::cuda {
namespace {

int memory = 0;

TensorView view(std::array<std::int64_t, 4> shape, std::array<std::int64_t, 4> stride) {
  return {&memory, DType::bf16, shape, stride};
}

TEST(Index, ReachIsTheLastOffset) {
  EXPECT_EQ(reach(view({2, 3, 4, 5}, {60, 20, 5, 1})), 119);
  EXPECT_EQ(reach(view({1, 1, 1, 1}, {60, 20, 5, 1})), 0);
  EXPECT_EQ(reach(view({2, 0, 4, 5}, {60, 20, 5, 1})), 0);
}

TEST(Index, NarrowUpToTheLastOffsetThatFits) {
  constexpr std::int64_t kMost = 2147483647;
  EXPECT_TRUE(fits_narrow({}));
  EXPECT_TRUE(fits_narrow({view({2, 1, 1, 1}, {kMost, 1, 1, 1})}));
  EXPECT_FALSE(fits_narrow({view({2, 1, 1, 1}, {kMost + 1, 1, 1, 1})}));
  EXPECT_FALSE(fits_narrow({view({2, 1, 1, 1}, {1, 1, 1, 1}), view({2, 1, 1, 1}, {kMost + 1, 1, 1, 1})}));
  // A stride that repeats memory: few offsets, many elements.
  EXPECT_FALSE(fits_narrow({view({1 << 16, 1 << 15, 1, 1}, {0, 0, 0, 1})}));
  EXPECT_FALSE(fits_narrow({view({2, 1, 1, 1}, {-1, 1, 1, 1})}));
}

TEST(Index, ForcedWidthsAreTaken) {
  const TensorView small = view({1, 1, 1, 8}, {8, 8, 8, 1});
  EXPECT_TRUE(is_narrow(IndexWidth::automatic, {small}));
  EXPECT_FALSE(is_narrow(IndexWidth::wide, {small}));
  EXPECT_TRUE(is_narrow(IndexWidth::narrow, {small}));
}

}  // namespace
}  // namespace rotunda::cuda
