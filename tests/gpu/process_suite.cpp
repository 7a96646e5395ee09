#include "gpu/process_suite.hpp"

#include <algorithm>
#include <numeric>

#include "transport/registry.hpp"

namespace rotunda::testing {

using namespace std::chrono_literals;

void ProcessSuite::SetUp() {
  ROTUNDA_NEEDS_DEVICE();
  devices_ = test_devices();
  const TransportEntry* transport = find_transport(GetParam().transport);
  ASSERT_NE(transport, nullptr);
  if (!transport->available()) GTEST_SKIP() << transport->here.missing;
  if (!GetParam().own_devices) return;
  devices_.resize(static_cast<std::size_t>(GetParam().ranks));
  std::iota(devices_.begin(), devices_.end(), 0);
  if (cuda_device_count() < GetParam().ranks) {
    GTEST_SKIP() << GetParam().transport << " needs a device for each of " << GetParam().ranks
                 << " ranks, and this machine has " << cuda_device_count();
  }
}

void ProcessSuite::expect_rank_1_named(const std::string& body, std::chrono::milliseconds timeout, double limit) const {
  const auto endings = spawn(body, timeout);
  for (int rank = 0; rank < GetParam().ranks; ++rank) {
    if (rank == 1) continue;
    const SpawnedEnding& ending = endings[static_cast<std::size_t>(rank)];
    EXPECT_NE(ending.text.find("rank 1"), std::string::npos) << "rank " << rank << ": " << ending.text;
    EXPECT_EQ(ending.status, 0) << "rank " << rank;
    EXPECT_LT(ending.seconds, limit) << "rank " << rank << ": " << ending.text;
  }
}

TEST_P(ProcessSuite, StridedMessagesArriveBitForBit) {
  for (const auto& ending : spawn("strided", 60s)) EXPECT_EQ(ending.text, "ok") << ending.status;
}

TEST_P(ProcessSuite, AttentionHasTheBitsOfTheLocalTransportEagerAndReplayed) {
  for (const auto& ending : spawn("attention", 60s)) EXPECT_EQ(ending.text, "ok") << ending.status;
}

TEST_P(ProcessSuite, AKilledProcessEndsTheOthersAtOnce) {
  expect_rank_1_named("dies", 100s, 60);
}

TEST_P(ProcessSuite, AKilledProcessEndsReplaysOfTheOthers) {
  expect_rank_1_named("dies_in_replay", 100s, 60);
}

TEST_P(ProcessSuite, AStalledProcessEndsTheOthersAfterTheTimeout) {
  expect_rank_1_named("stalls", 20s, 90);
}

TEST_P(ProcessSuite, AnErrorReachesTheOthers) {
  expect_rank_1_named("throws", 100s, 60);
}

}  // namespace rotunda::testing
