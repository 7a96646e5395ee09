// The shared suite on every kernel that runs on CUDA devices.
#include "kernel/kernel.hpp"

#include <gtest/gtest.h>

#include "kernel/kernel_suite.hpp"

namespace rotunda {
namespace {

INSTANTIATE_TEST_SUITE_P(cuda, KernelSuite, ::testing::ValuesIn(suite_cases(cuda_kernels())), kernel_test_name);

TEST(CudaKernels, AreFoundByNameAndDevice) {
  ASSERT_FALSE(cuda_kernels().empty());
  for (const Kernel* kernel : cuda_kernels()) EXPECT_EQ(find_kernel(kernel->name(), Device::Kind::cuda), kernel);
  EXPECT_NE(find_kernel("reference", Device::Kind::cpu), find_kernel("reference", Device::Kind::cuda));
}

}  // namespace
}  // namespace rotunda
