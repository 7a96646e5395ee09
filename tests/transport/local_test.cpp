#include "support/error_test.hpp"
#include "transport/transport_suite.hpp"

namespace rotunda::testing {
namespace {

using namespace std::chrono_literals;

const TransportCase kLocal{"local", make_local_group};

INSTANTIATE_TEST_SUITE_P(Local, TransportSuite, ::testing::Combine(::testing::Values(kLocal), ::testing::Range(1, 9)),
                         suite_name);
INSTANTIATE_TEST_SUITE_P(Local, TransportFailureSuite,
                         ::testing::Combine(::testing::Values(kLocal), ::testing::Values(2, 3, 5, 8)), suite_name);

TEST(LocalGroup, NeedsARank) {
  EXPECT_THROW((void)make_local_group(0), Error);
  EXPECT_THROW((void)make_local_group(-1), Error);
}

TEST(LocalGroup, TakesTimeoutsThatEnd) {
  for (const auto timeout : {0ms, -1ms, std::chrono::milliseconds::max()}) {
    EXPECT_ERROR((void)make_local_group(1, {timeout, {}, {}}), ErrorKind::bad_input, "a group's timeout is");
  }
}

TEST(LocalGroup, SaysWhoItIs) {
  const auto group = make_local_group(3);
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(group[static_cast<std::size_t>(rank)]->rank(), rank);
    EXPECT_EQ(group[static_cast<std::size_t>(rank)]->size(), 3);
    EXPECT_EQ(group[static_cast<std::size_t>(rank)]->name(), "local");
  }
}

}  // namespace
}  // namespace rotunda::testing
