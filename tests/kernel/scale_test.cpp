// Scales far above 1/sqrt(d), on the kernels of the CPU: docs/accuracy.md says what can be had there.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "kernel_driver.hpp"

namespace rotunda {
namespace {

class Scales : public ::testing::TestWithParam<const char*> {
 protected:
  /// Every tensor's grade, of the keys in one call or cut into several.
  static void expect_passed(const std::string& text, int pieces) {
    const Kernel& kernel = *find_kernel(GetParam(), Device::Kind::cpu);
    Problem problem = parse_problem(text);
    normalize(problem);
    for (std::uint64_t seed = 1; seed <= 3; ++seed) {
      testing::KernelDriver driver(kernel, problem, {.seed = seed});
      driver.run(testing::cut_keys(problem, mask_slices(problem), pieces));
      for (const Grade& each : grade(problem, oracle(problem, driver.tensors(), 2), driver.tensors())) {
        EXPECT_TRUE(each.passed()) << text << ", seed " << seed << ", " << pieces << " calls: " << each.tensor << " "
                                   << each.ratio << ", misplaced " << each.misplaced;
      }
    }
  }
};

TEST_P(Scales, KeepLseOfRowsWhoseLogitsCancel) {
  for (const char* sizes : {"d=64 scale=1 ", "d=256 scale=3 ", "d=512 scale=10 ", "d=64 scale=1e6 "}) {
    for (const char* dtype : {"bf16", "fp16", "fp32"}) {
      expect_passed(fmt::format("dtype={} s_q=32 h_q=4 {} mask=causal grad=1", dtype, sizes), 1);
    }
  }
}

TEST_P(Scales, BeyondWhatLseCanTellStayFinite) {
  for (const char* scale : {"1e9", "1e14", "1e18", "1e30"}) {
    for (const int pieces : {1, 3}) {
      expect_passed(fmt::format("dtype=fp32 s_q=48 h_q=2 d=32 scale={} grad=1", scale), pieces);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Kernels, Scales, ::testing::Values("cpu", "reference"),
                         [](const auto& param_info) { return std::string(param_info.param); });

}  // namespace
}  // namespace rotunda
