// Which heads' rows begin in the middle of a sector of 32 bytes.
#include "kernel/sm90/row_shift.hpp"

#include <gtest/gtest.h>

namespace rotunda::sm90 {
namespace {

constexpr int kBatch = 2, kRows = 100, kHeads = 4;

/// A view of bf16 with strides of its own; only its address is looked at.
TensorView view_at(std::uintptr_t address, std::int64_t dim, std::int64_t batch_stride, std::int64_t row_stride,
                   std::int64_t head_stride) {
  TensorView view;
  view.data = reinterpret_cast<void*>(address);
  view.dtype = DType::bf16;
  view.shape = {kBatch, kRows, kHeads, dim};
  view.stride = {batch_stride, row_stride, head_stride, 1};
  return view;
}

std::uintptr_t address(const TensorView& view, int batch, int row, int head) {
  return reinterpret_cast<std::uintptr_t>(view.data) +
         2 * static_cast<std::uintptr_t>(batch * view.stride[0] + row * view.stride[1] + head * view.stride[2]);
}

/// By counting.
void expect_boxes_begin_with_sectors(const TensorView& view) {
  const RowShift shift = row_shift(view);
  EXPECT_TRUE(shift.any());
  const TensorView shifted = shifted_heads(view);
  for (int batch = 0; batch < kBatch; ++batch) {
    for (int head = 0; head < kHeads; ++head) {
      for (const int row : {0, 1, kRows - 1}) {
        const std::uintptr_t begin = address(view, batch, row, head),
                             shifted_by = 2U * static_cast<unsigned>(shift.of(head));
        EXPECT_EQ((begin - shifted_by) % 32, 0) << "batch " << batch << ", head " << head << ", row " << row;
        if (shifted_by == 0) continue;
        ASSERT_LT(head >> shift.odd_head, shifted.heads());
        EXPECT_EQ(address(shifted, batch, row, head >> shift.odd_head), begin - shifted_by);
      }
    }
  }
  EXPECT_EQ(shifted.dim(), view.dim() + RowShift::kElements);
  const auto first = reinterpret_cast<std::uintptr_t>(shifted.data),
             tensor = reinterpret_cast<std::uintptr_t>(view.data);
  EXPECT_TRUE(first >= tensor || first / 32 == tensor / 32) << "reads what may not be there";
}

TEST(RowShift, FollowsHeads) {
  for (const std::int64_t dim : {264, 344, 504}) {
    for (const std::uintptr_t at : {0x1000, 0x1010}) {
      expect_boxes_begin_with_sectors(view_at(at, dim, 400 * dim, 4 * dim, dim));  // bshd
      expect_boxes_begin_with_sectors(view_at(at, dim, 4 * dim, 8 * dim, dim));    // sbhd
    }
    expect_boxes_begin_with_sectors(view_at(0x1010, dim, 400 * dim, 4 * dim, dim + 8));  // heads with gaps: all
  }
}

TEST(RowShift, IsNoneWhereItCannotHelp) {
  EXPECT_FALSE(row_shift(view_at(0x1010, 512, 512 * 400, 512 * 4, 512)).any()) << "there is no room";
  EXPECT_FALSE(row_shift(view_at(0x1010, 264, 264 * 400, 264, 264 * 100)).any()) << "rows of a head differ (bhsd)";
  EXPECT_FALSE(row_shift(view_at(0x1000, 264, 264 * 401, 264 * 4, 264)).any()) << "batch entries differ";
  const TensorView view = view_at(0x1000, 264, 264 * 400, 264 * 4, 272);
  EXPECT_EQ(shifted_heads(view).data, view.data) << "nothing is shifted";
}

}  // namespace
}  // namespace rotunda::sm90
