// Masks that would take more slices than any machine plans.
#include <gtest/gtest.h>

#include "rotunda/problem.hpp"
#include "support/error_test.hpp"

namespace rotunda {
namespace {

TEST(SlicesLimit, IsAnErrorBeforeMemoryIsGone) {
  EXPECT_ERROR((void)mask_slices(parse_problem("s_q=1000000000000 h_q=2 d=16 mask=causal chunk=1")),
               ErrorKind::unsupported, "more than 4194304 slices");
  EXPECT_ERROR((void)mask_slices(parse_problem("b=1000000000000 s_q=1 h_q=2 d=16")), ErrorKind::unsupported,
               "batch entries");
  EXPECT_EQ(mask_slices(parse_problem("s_q=1000 h_q=2 d=16 mask=causal chunk=1")).size(), 1000U);
}

}  // namespace
}  // namespace rotunda
