// ROTUNDA_TEST_REQUIRED names kernels that this lane must cover: a missing one fails instead of being skipped.
#include <gtest/gtest.h>

#include <sstream>
#include <string>

#include "base/environment.hpp"
#include "kernel/kernel.hpp"

namespace rotunda {
namespace {

TEST(Required, EveryRequiredKernelIsHere) {
  std::istringstream names(environment("ROTUNDA_TEST_REQUIRED").value_or("cpu,reference"));
  for (std::string name; std::getline(names, name, ',');) {
    EXPECT_NE(find_kernel(name), nullptr) << name << " is not in this build";
    EXPECT_FALSE(is_disabled(name)) << name << " is disabled by ROTUNDA_DISABLE";
  }
}

}  // namespace
}  // namespace rotunda
