// Elementwise operations of the host whose rounding matters. That those of CUDA devices do the same: tests/gpu.
#include "kernel/elementwise/elementwise.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "base/thread_pool.hpp"
#include "support/random_tensors.hpp"

namespace rotunda {
namespace {

TEST(HostElementwise, RowDotIsRoundedOnce) {
  const Problem problem = parse_problem("dtype=fp32 s_q=40 h_q=3 d=8 d_v=512 grad=1");
  testing::ProblemTensors tensors(problem, {});
  const TensorView &out = tensors.views().v, &dout = tensors.views().dout;
  const TensorView delta = tensors.allocate(DType::fp32, Layout::bshd, 1, 40, 3, 1);
  ThreadPool threads(2);
  host_elementwise(threads)->row_dot(out, dout, delta);
  testing::for_each_element(delta, [&](auto b, auto row, auto head, auto) {
    double sum = 0;
    for (std::int64_t i = 0; i < 512; ++i) {
      sum += testing::read(out, b, row, head, i) * testing::read(dout, b, row, head, i);
    }
    EXPECT_EQ(testing::read(delta, b, row, head), static_cast<double>(static_cast<float>(sum))) << row << ", " << head;
  });
}

TEST(HostElementwise, ASinkLeavesOutZeroWhereNothingIsSeen) {
  // Sinks by head: NaN, both infinities, 1. Row 0 sees nothing; row 1 has lse 1.
  const Problem problem = parse_problem("dtype=fp32 s_q=2 h_q=4 d=3");
  testing::ProblemTensors tensors(problem, {});
  const auto rows = [&] { return tensors.allocate(DType::fp32, Layout::bshd, 1, 2, 4, 1); };
  const TensorView acc = tensors.allocate(DType::fp32, Layout::bshd, 1, 2, 4, 3), out = tensors.views().out;
  const TensorView lse = rows(), low = rows(), sink = tensors.allocate(DType::fp32, Layout::bshd, 1, 1, 4, 1);
  const double sinks[] = {testing::kNaN, HUGE_VAL, -HUGE_VAL, 1};
  testing::fill(low, 0);
  for (int head = 0; head < 4; ++head) {
    testing::write(sink, 0, 0, head, 0, sinks[head]);
    testing::write(lse, 0, 0, head, 0, -HUGE_VAL);
    testing::write(lse, 0, 1, head, 0, 1);
  }
  testing::fill(acc.narrow_rows(0, 1), 0);
  testing::fill(acc.narrow_rows(1, 1), 8);
  ThreadPool threads(1);
  const std::vector<RowSpan> all = {{0, 0, 2}};
  host_elementwise(threads)->finish_with_sink({acc, lse, low}, out, sink, {all, nullptr});
  const double weights[] = {testing::kNaN, 0, 1, 0.5};
  for (int head = 0; head < 4; ++head) {
    EXPECT_EQ(testing::read(out, 0, 0, head, 2), 0) << head;
    if (head == 0) {
      EXPECT_TRUE(std::isnan(testing::read(lse, 0, 0, head)) && std::isnan(testing::read(out, 0, 1, head)));
    } else {
      EXPECT_EQ(testing::read(lse, 0, 0, head), sinks[head]) << head;
      EXPECT_EQ(testing::read(out, 0, 1, head), 8 * weights[head]) << head;
    }
  }
}

}  // namespace
}  // namespace rotunda
