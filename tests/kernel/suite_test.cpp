// The shared suite on every kernel of this build.
#include "kernel/kernel.hpp"

#include <gtest/gtest.h>

#include "kernel_suite.hpp"

namespace rotunda {
namespace {

/// The kernels that run on host memory; those of CUDA devices have tests of their own.
std::vector<const Kernel*> host_kernels() {
  std::vector<const Kernel*> result;
  for (const Kernel* kernel : kernels()) {
    if (kernel->capabilities().device == Device::Kind::cpu) result.push_back(kernel);
  }
  return result;
}

INSTANTIATE_TEST_SUITE_P(all, KernelSuite, ::testing::ValuesIn(suite_cases(host_kernels())), kernel_test_name);

TEST(Kernels, AreFoundByName) {
  ASSERT_FALSE(kernels().empty());
  for (const Kernel* kernel : kernels()) EXPECT_EQ(find_kernel(kernel->name(), kernel->capabilities().device), kernel);
  EXPECT_EQ(find_kernel("no such kernel"), nullptr);
}

}  // namespace
}  // namespace rotunda
