// Elementwise operations of the host whose rounding matters. That those of CUDA devices do the same: tests/gpu.
#include "kernel/elementwise/elementwise.hpp"

#include <gtest/gtest.h>

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

}  // namespace
}  // namespace rotunda
