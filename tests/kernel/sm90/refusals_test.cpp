// What the sm90 kernel declines, and why; no GPU is needed.
#include <gtest/gtest.h>

#include "kernel/sm90/sm90_kernel.hpp"

namespace rotunda {
namespace {

std::string refusal(const std::string& text) {
  return sm90_kernel().refuse(parse_problem(text), Device{}).value_or("");
}

TEST(Sm90, ServesWideHeads) {
  for (const char* dims : {"d=264", "d=320", "d=384", "d=448", "d=504", "d=512", "d=512 d_v=264"}) {
    for (const char* dtype : {"bf16", "fp16"}) {
      EXPECT_EQ(refusal(std::string("s_q=8 h_q=1 dtype=") + dtype + " " + dims), "") << dims;
    }
  }
}

TEST(Sm90, RefusesOtherHeadDims) {
  for (const char* dims : {"d=128", "d=256", "d=260", "d=512 d_v=256", "d=64 d_v=512", "d=511"}) {
    EXPECT_NE(refusal(std::string("s_q=8 h_q=1 ") + dims).find("head dims from 264 to 512"), std::string::npos) << dims;
  }
}

TEST(Sm90, RefusesFp32) {
  EXPECT_NE(refusal("s_q=8 h_q=1 d=512 dtype=fp32").find("not fp32"), std::string::npos);
}

TEST(Sm90, RefusesMoreRowsThanItsOffsetsHold) {
  const Problem problem = parse_problem("s_q=8 h_q=1 d=512");
  CallShape call = whole_call(problem, {}, false);
  EXPECT_FALSE(sm90_kernel().refuse_call(problem, call));
  call.rows_k = (std::int64_t{1} << 30) + 1;
  EXPECT_TRUE(sm90_kernel().refuse_call(problem, call));
  call.rows_k = 8;
  call.rows_q = (std::int64_t{1} << 30) + 1;
  EXPECT_TRUE(sm90_kernel().refuse_call(problem, call));
}

TEST(Sm90, WantsAlignedTensors) {
  EXPECT_EQ(sm90_kernel().capabilities().alignment, 16);
  EXPECT_FALSE(sm90_kernel().capabilities().confines_nan);
}

}  // namespace
}  // namespace rotunda
