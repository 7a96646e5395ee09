// The suite that every kernel passes. A kernel of kernels() joins by being there (suite_test.cpp); another one with
//   INSTANTIATE_TEST_SUITE_P(mine, KernelSuite, ::testing::Values(SuiteCase{&my_kernel()}), kernel_test_name);
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "kernel/kernel.hpp"
#include "problem/defaults.hpp"

namespace rotunda {

/// A kernel and the problems that it is given.
struct SuiteCase {
  const Kernel* kernel = nullptr;
  /// For kernels of 16-bit wide heads alone: head dims become multiples of 8 above 256, fp32 becomes fp16.
  bool wide = false;
};

class KernelSuite : public ::testing::TestWithParam<SuiteCase> {
 protected:
  void SetUp() override {
    if (kernel().capabilities().device == Device::Kind::cuda && cuda_device_count() == 0) GTEST_SKIP() << why_no_cuda();
  }
  [[nodiscard]] static const Kernel& kernel() { return *GetParam().kernel; }

  /// A problem of the suite as the case wants it; without gradients, where the kernel has none for it.
  [[nodiscard]] static Problem adapt(Problem problem) {
    problem.max_logit &= kernel().capabilities().row_max;  // as a plan would not ask for it
    if (!GetParam().wide) return problem;
    const auto widen = [](int dim) { return std::min(256 + (dim + 7) / 8 * 8, 512); };
    if (problem.scale == default_scale(problem.d)) problem.scale = 0;
    problem.d = widen(problem.d);
    problem.d_v = widen(problem.d_v);
    if (problem.dtype == DType::fp32) problem.dtype = DType::fp16;
    normalize(problem);
    if (!kernel().refuse(problem, cuda_device(0))) return problem;
    problem.grad = false;
    return problem;
  }
  [[nodiscard]] static Problem problem(const std::string& text) { return adapt(parse_problem(text)); }

  /// What another order of sums changes in results of size 1 to 10.
  [[nodiscard]] static double reordering(const Problem& problem) {
    switch (problem.dtype) {
      case DType::fp32: return 2e-5;
      case DType::fp16: return 1e-2;
      case DType::bf16: break;
    }
    return 8e-2;
  }
};

/// One case a kernel.
[[nodiscard]] inline std::vector<SuiteCase> suite_cases(const std::vector<const Kernel*>& kernels) {
  std::vector<SuiteCase> cases;
  const Problem narrow = parse_problem("s_q=8 h_q=1 d=64"), wide = parse_problem("s_q=8 h_q=1 d=512");
  for (const Kernel* kernel : kernels)
    cases.push_back({kernel, kernel->refuse(narrow, {}) && !kernel->refuse(wide, {})});
  return cases;
}

[[nodiscard]] inline std::string kernel_test_name(const ::testing::TestParamInfo<SuiteCase>& info) {
  return info.param.kernel->name();
}

}  // namespace rotunda
