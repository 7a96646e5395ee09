// The suite that every kernel passes. A kernel of kernels() joins by being there (suite_test.cpp); another one with
//   INSTANTIATE_TEST_SUITE_P(mine, KernelSuite, ::testing::Values(&my_kernel()), kernel_test_name);
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "kernel/kernel.hpp"

namespace rotunda {

class KernelSuite : public ::testing::TestWithParam<const Kernel*> {
 protected:
  void SetUp() override {
    if (kernel().capabilities().device == Device::Kind::cuda && cuda_device_count() == 0) GTEST_SKIP() << why_no_cuda();
  }
  [[nodiscard]] static const Kernel& kernel() { return *GetParam(); }

  /// A problem as a plan would bring it: no row maximum is asked of a kernel that states none.
  [[nodiscard]] static Problem problem_of(const std::string& text) {
    Problem problem = parse_problem(text);
    problem.max_logit &= kernel().capabilities().row_max;
    return problem;
  }
};

[[nodiscard]] inline std::string kernel_test_name(const ::testing::TestParamInfo<const Kernel*>& info) {
  return info.param->name();
}

}  // namespace rotunda
