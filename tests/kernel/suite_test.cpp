// The shared suite on every kernel of this build.
#include "kernel/kernel.hpp"

#include <gtest/gtest.h>

#include "kernel_suite.hpp"

namespace rotunda {
namespace {

INSTANTIATE_TEST_SUITE_P(all, KernelSuite, ::testing::ValuesIn(kernels()), kernel_test_name);

TEST(Kernels, AreFoundByName) {
  ASSERT_FALSE(kernels().empty());
  for (const Kernel* kernel : kernels()) EXPECT_EQ(find_kernel(kernel->name()), kernel);
  EXPECT_EQ(find_kernel("no such kernel"), nullptr);
}

}  // namespace
}  // namespace rotunda
