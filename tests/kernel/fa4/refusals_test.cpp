// What the kernel refuses, with no device.
#include <gtest/gtest.h>

#include "kernel/fa4/fa4_kernel.hpp"
#include "kernel/fa4/needs.hpp"

namespace rotunda::fa4 {
namespace {

std::string refusal(const std::string& text) {
  return refuse(parse_problem(text)).value_or("");
}

TEST(Fa4Refusals, DTypeAndHeadDims) {
  EXPECT_EQ(refusal("s_q=64 h_q=2 d=64 grad=1"), "");
  EXPECT_EQ(refusal("dtype=fp16 s_q=64 h_q=2 d=40 d_v=64 grad=1"), "");
  EXPECT_NE(refusal("dtype=fp32 s_q=64 h_q=2 d=64").find("not fp32"), std::string::npos);
  EXPECT_NE(refusal("s_q=64 h_q=2 d=36").find("multiples of 8, not d=36 d_v=36"), std::string::npos);
  EXPECT_NE(refusal("s_q=64 h_q=2 d=64 d_v=20").find("d_v=20"), std::string::npos);
  EXPECT_NE(refusal("s_q=64 h_q=2 d=512").find("not d=512 d_v=512"), std::string::npos);
}

TEST(Fa4Refusals, RowMaximaAreNotGiven) {
  EXPECT_FALSE(fa4_kernel().capabilities().row_max);
}

std::string call_refusal(const Problem& problem, const std::vector<Slice>& slices, bool backward) {
  return refuse_call(problem, whole_call(problem, slices, backward)).value_or("");
}

TEST(Fa4Refusals, Sizes) {
  Problem problem = parse_problem("s_q=64 h_q=2 d=128 grad=1");
  EXPECT_EQ(call_refusal(problem, mask_slices(problem), false), "");
  EXPECT_EQ(call_refusal(problem, mask_slices(problem), true), "");
  problem = parse_problem("s_q=600000000 s_k=64 h_q=2 d=128 grad=1");
  EXPECT_NE(call_refusal(problem, mask_slices(problem), false).find("counts rows in 32 bits"), std::string::npos);
  problem = parse_problem("s_q=20000000 s_k=64 h_q=2 d=128 grad=1");
  EXPECT_EQ(call_refusal(problem, mask_slices(problem), false), "");
  EXPECT_NE(call_refusal(problem, mask_slices(problem), true).find("counts a head's gradients"), std::string::npos);
}

TEST(Fa4Refusals, TooManyPieces) {
  const Problem problem = parse_problem("s_q=200000 h_q=1 d=64 grad=1");
  std::vector<Slice> slices;
  for (std::int64_t i = 0; i < 70000; ++i) slices.push_back({0, 2 * i, 1, 2 * i, 1, 0, 0, kInfinity, kInfinity});
  EXPECT_NE(call_refusal(problem, slices, false).find("pieces; at most"), std::string::npos);
  EXPECT_NE(call_refusal(problem, slices, true).find("pieces; at most"), std::string::npos);
}

TEST(Fa4Refusals, WorkspaceIsForWhatACallHolds) {
  const Problem problem = parse_problem("s_q=1000 h_q=4 h_kv=2 d=128 mask=causal grad=1");
  const std::vector<Slice> slices = mask_slices(problem);
  CallShape call = whole_call(problem, slices, false);
  EXPECT_LT(workspace_bytes(problem, call), 4096) << "one launch needs tables alone";
  call.last = false;
  EXPECT_GT(workspace_bytes(problem, call), 4 * 1000 * 4);
  call = whole_call(problem, slices, true);
  EXPECT_GE(workspace_bytes(problem, call), std::int64_t{4} * 128 * (4 * 1024 + 2 * 2 * 1024));
}

}  // namespace
}  // namespace rotunda::fa4
