// What the mma kernel refuses, and how its tiles fit: no GPU is needed.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "kernel/mma/call.hpp"
#include "kernel/mma/mma_kernel.hpp"
#include "kernel/mma/tiling.hpp"

namespace rotunda::mma {
namespace {

/// What a block may have on compute capability 9.0, 8.0, and 8.6 or 8.9.
constexpr int kSharedBytes[] = {227 << 10, 163 << 10, 99 << 10};

std::string refusal(const std::string& text) {
  return mma_kernel().refuse(parse_problem(text), Device{}).value_or("");
}

TEST(MmaSupport, SaysWhatItDoesNotServe) {
  EXPECT_EQ(refusal("s_q=8 h_q=1 d=512 mask=none grad=1"), "");
  EXPECT_EQ(refusal("dtype=fp16 s_q=8 h_q=1 d=8 d_v=512 mask=none"), "");
  EXPECT_EQ(refusal("dtype=fp32 s_q=8 h_q=1 d=64 mask=none"), "mma serves bf16 and fp16, not fp32");
  EXPECT_EQ(refusal("s_q=8 h_q=1 d=260 mask=none"),
            "mma serves head dims up to 512 that are multiples of 8, not d=260 d_v=260");
  EXPECT_NE(refusal("s_q=8 h_q=1 d=64 d_v=20 mask=none"), "");
  EXPECT_NE(refusal("s_q=2000000000 h_q=1 d=64 mask=none").find("rows"), std::string::npos);
}

TEST(MmaSupport, IsAutomaticAndAccumulates) {
  const KernelCapabilities can = mma_kernel().capabilities();
  EXPECT_TRUE(can.automatic && can.accumulates && can.slices && can.row_max && can.deterministic);
  EXPECT_TRUE(can.confines_nan && can.narrow_gradients && !can.reads_out);
  EXPECT_EQ(can.alignment, 1);
}

TEST(MmaTiling, ServesEveryHeadDimInEverySharedMemory) {
  for (const int bytes : kSharedBytes) {
    for (const Pass pass : {Pass::forward, Pass::queries, Pass::keys}) {
      for (int d = 8; d <= 512; d += 8) {
        for (int d_v = 8; d_v <= 512; d_v += 8) {
          const Tiling tiling = choose_tiling(pass, d, d_v, bytes);
          ASSERT_GE(tiling.width, std::max(d, d_v));
          ASSERT_LE(tiling.bytes, bytes);
          ASSERT_GT(tiling.rows, 0);
          ASSERT_LE(tiling.threads, 256);
        }
      }
    }
  }
}

TEST(MmaTiling, PrefersMoreRowsWhereThereIsRoom) {
  EXPECT_EQ(choose_tiling(Pass::forward, 512, 512, kSharedBytes[0]).rows, 64);
  EXPECT_FALSE(choose_tiling(Pass::forward, 512, 512, kSharedBytes[0]).one_buffer);
  EXPECT_TRUE(choose_tiling(Pass::forward, 512, 512, kSharedBytes[2]).one_buffer);
  EXPECT_EQ(choose_tiling(Pass::keys, 128, 64, kSharedBytes[0]).width, 128);
}

TEST(MmaTiling, IsRefusedWhereNothingFits) {
  Problem problem = parse_problem("s_q=8 h_q=1 d=512 mask=none grad=1");
  EXPECT_FALSE(refuse_memory(problem, kSharedBytes[2]).has_value());
  EXPECT_EQ(refuse_memory(problem, 48 << 10).value_or(""),
            "mma has no tiles for d=512 d_v=512 in 49152 bytes of shared memory a block");
}

}  // namespace
}  // namespace rotunda::mma
