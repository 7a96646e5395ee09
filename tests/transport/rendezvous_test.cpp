// Processes meet, exchange, fail: real processes, made by fork.
#include "transport/rendezvous/rendezvous.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <thread>

#include "support/error_test.hpp"
#include "transport/process/forked_ranks.hpp"
#include "transport/rendezvous/sockets.hpp"

namespace rotunda::testing {
namespace {

using namespace std::chrono_literals;

constexpr const char* kNoLoopback = "no network interface: 127.0.0.1 does not answer";

class RendezvousRanks : public ::testing::TestWithParam<std::tuple<int, bool>> {
 protected:
  void SetUp() override {
    if (std::get<1>(GetParam()) && !has_loopback()) GTEST_SKIP() << kNoLoopback;
  }
  [[nodiscard]] static int ranks() { return std::get<0>(GetParam()); }
  [[nodiscard]] static std::string address() { return std::get<1>(GetParam()) ? tcp_address() : unix_address(); }
};

TEST_P(RendezvousRanks, GatherInRankOrderAnySize) {
  const auto endings = fork_ranks(ranks(), address(), 20s, [](Rendezvous& rendezvous) {
    const auto bytes = [](int rank, int round) {
      const std::size_t size = round == 3 ? 3'000'000 : static_cast<std::size_t>(rank * round);
      return std::string(size, static_cast<char>('a' + rank)) + std::to_string(round);
    };
    for (int round = 0; round < 6; ++round) {
      const auto all = rendezvous.all_gather(bytes(rendezvous.rank(), round));
      if (all.size() != static_cast<std::size_t>(rendezvous.size())) return std::string("a wrong number");
      for (int rank = 0; rank < rendezvous.size(); ++rank) {
        if (all[static_cast<std::size_t>(rank)] != bytes(rank, round)) return "round " + std::to_string(round);
      }
    }
    return std::string("ok");
  });
  for (const auto& ending : endings) EXPECT_EQ(ending.text, "ok");
}

TEST_P(RendezvousRanks, LeavingIsNoFailure) {
  const auto endings = fork_ranks(ranks(), address(), 20s, [](Rendezvous& rendezvous) {
    (void)rendezvous.all_gather("");
    if (rendezvous.rank() != 0) return std::string("left");
    std::this_thread::sleep_for(200ms);
    return std::string(rendezvous.failed() ? rendezvous.failure()->reason : "fine");
  });
  EXPECT_EQ(endings[0].text, "fine");
}

INSTANTIATE_TEST_SUITE_P(Ranks, RendezvousRanks, ::testing::Combine(::testing::Range(1, 6), ::testing::Bool()),
                         [](const auto& parameters) {
                           return std::string(std::get<1>(parameters.param) ? "tcp_" : "unix_") +
                                  std::to_string(std::get<0>(parameters.param));
                         });

/// Every rank gathers until it is told of a failure; returns what it was told.
std::string gather_on(Rendezvous& rendezvous) {
  try {
    for (int round = 0; round < 1000; ++round) {
      (void)rendezvous.all_gather("x");
      std::this_thread::sleep_for(1ms);
    }
  } catch (const Error& error) {
    return error.what();
  }
  return "nothing happened";
}

class RendezvousFailures : public ::testing::TestWithParam<int> {};  // the rank that fails

TEST_P(RendezvousFailures, AKilledProcessIsNamedToAllAtOnce) {
  const int guilty = GetParam();
  const auto endings = fork_ranks(4, unix_address(), 30s, [&](Rendezvous& rendezvous) {
    (void)rendezvous.all_gather("");
    if (rendezvous.rank() == guilty) std::raise(SIGKILL);
    return gather_on(rendezvous);
  });
  for (int rank = 0; rank < 4; ++rank) {
    const Ending& ending = endings[static_cast<std::size_t>(rank)];
    if (rank == guilty) continue;
    EXPECT_NE(ending.text.find("rank " + std::to_string(guilty) + " failed: its process has ended"), std::string::npos)
        << rank << ": " << ending.text;
    EXPECT_LT(ending.seconds, 10);
  }
}

TEST_P(RendezvousFailures, AProcessThatExitsIsNamed) {
  const int guilty = GetParam();
  const auto endings = fork_ranks(4, has_loopback() ? tcp_address() : unix_address(), 30s, [&](Rendezvous& rendezvous) {
    (void)rendezvous.all_gather("");
    if (rendezvous.rank() == guilty) ::_exit(3);
    return gather_on(rendezvous);
  });
  for (int rank = 0; rank < 4; ++rank) {
    if (rank == guilty) continue;
    const std::string& text = endings[static_cast<std::size_t>(rank)].text;
    EXPECT_NE(text.find("rank " + std::to_string(guilty)), std::string::npos) << text;
  }
}

TEST_P(RendezvousFailures, AnAbortReachesAll) {
  const int guilty = GetParam();
  const auto endings = fork_ranks(4, unix_address(), 30s, [&](Rendezvous& rendezvous) {
    (void)rendezvous.all_gather("");
    if (rendezvous.rank() == guilty) rendezvous.abort("out of paper");
    return gather_on(rendezvous);
  });
  for (const auto& ending : endings) {
    EXPECT_EQ(ending.text, "rank " + std::to_string(guilty) + " failed: out of paper");
    EXPECT_LT(ending.seconds, 10);
  }
}

TEST_P(RendezvousFailures, AStalledProcessIsNamedAfterTheTimeout) {
  const int guilty = GetParam();
  const auto endings = fork_ranks(4, unix_address(), 700ms, [&](Rendezvous& rendezvous) {
    (void)rendezvous.all_gather("");
    if (rendezvous.rank() == guilty) std::this_thread::sleep_for(2500ms);
    return gather_on(rendezvous);
  });
  for (int rank = 0; rank < 4; ++rank) {
    const std::string& text = endings[static_cast<std::size_t>(rank)].text;
    EXPECT_NE(text.find("waited 0.7 s for rank " + std::to_string(guilty) + " to join agreement"), std::string::npos)
        << rank << ": " << text;
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, RendezvousFailures, ::testing::Values(0, 1, 3));

TEST(Rendezvous, FailuresCallBack) {
  const auto endings = fork_ranks(2, unix_address(), 20s, [](Rendezvous& rendezvous) {
    std::atomic<int> calls = 0;
    rendezvous.on_failure([&] { ++calls; });
    (void)rendezvous.all_gather("");
    if (rendezvous.rank() == 1) std::raise(SIGKILL);
    for (int i = 0; i < 1000 && calls == 0; ++i) std::this_thread::sleep_for(5ms);
    rendezvous.on_failure({});
    return std::string(calls > 0 ? "called" : "not called");
  });
  EXPECT_EQ(endings[0].text, "called");
}

TEST(Rendezvous, ProgressIsKnownToTheOthers) {
  const auto endings = fork_ranks(3, unix_address(), 20s, [](Rendezvous& rendezvous) {
    rendezvous.set_progress(rendezvous.rank() == 1 ? 5 : 9);
    for (int i = 0; i < 400 && rendezvous.slowest().second != 5; ++i) std::this_thread::sleep_for(5ms);
    const auto slowest = rendezvous.slowest();
    (void)rendezvous.all_gather("");
    return fmt::format("{} {}", slowest.first, slowest.second);
  });
  for (const auto& ending : endings) EXPECT_EQ(ending.text, "1 5");
}

TEST(Rendezvous, NobodyThereIsATimeoutThatSaysWhere) {
  EXPECT_ERROR(Rendezvous({1, 2, "unix:/tmp/rotunda-test-nobody.sock", 200ms}), ErrorKind::transport,
               "rank 1 could not reach rank 0 at unix:/tmp/rotunda-test-nobody.sock within 0.2 s");
  if (has_loopback()) {
    EXPECT_ERROR(Rendezvous({1, 2, tcp_address(), 200ms}), ErrorKind::transport, "refused");
  }
  EXPECT_ERROR(Rendezvous({0, 3, unix_address(), 200ms}), ErrorKind::transport, "for rank 1, 2 to join");
  EXPECT_ERROR(Rendezvous({0, 2, "nonsense", 200ms}), ErrorKind::bad_input, "HOST:PORT");
  EXPECT_ERROR(Rendezvous({3, 2, unix_address(), 200ms}), ErrorKind::bad_input, "rank 3 of 2");
}

TEST(Rendezvous, SizesAndRanksThatDisagree) {
  const std::string address = unix_address();
  std::jthread other([&] {
    EXPECT_ERROR(Rendezvous({1, 3, address, 5s}), ErrorKind::transport, "as one of 3 ranks, rank 0 as one of 2");
  });
  EXPECT_ERROR(Rendezvous({0, 2, address, 5s}), ErrorKind::transport, "as one of 3 ranks, rank 0 as one of 2");
}

TEST(Rendezvous, AStrangerIsIgnored) {
  if (!has_loopback()) GTEST_SKIP() << kNoLoopback;
  const std::string address = tcp_address();
  std::jthread stranger([&] {
    rendezvous::Descriptor socket = rendezvous::connect_to(address, 7, 5s);
    const std::string text = "GET / HTTP/1.1\r\nHost: somewhere.example\r\nAccept: everything\r\n\r\n";
    (void)!::write(socket.get(), text.data(), text.size());
    Rendezvous one({1, 2, address, 5s});
    EXPECT_EQ(one.all_gather("b").size(), 2U);
  });
  Rendezvous zero({0, 2, address, 5s});
  EXPECT_EQ(zero.all_gather("a"), (std::vector<std::string>{"a", "b"}));
}

}  // namespace
}  // namespace rotunda::testing
