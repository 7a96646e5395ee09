#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <stdexcept>

#include "base/fail.hpp"
#include "support/error_test.hpp"
#include "transport/transport_suite.hpp"

namespace rotunda::testing {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

/// Far longer than a test may take: what is noticed only by this timeout fails the test.
constexpr auto kNever = 20'000ms;

/// What every rank's body threw, by rank; empty where it returned.
struct Endings {
  std::vector<std::string> texts;
  std::string rethrown;
  double seconds = 0;
};

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

/// Runs body and notes how each rank ended; expects Error transport.
Endings run_to_failure(Group& group, const std::function<void(Transport&)>& body) {
  Endings endings;
  endings.texts.resize(group.size());
  std::mutex mutex;
  const auto begin = Clock::now();
  try {
    run_ranks(group, [&](Transport& t) {
      try {
        body(t);
      } catch (const std::exception& error) {
        const std::scoped_lock lock(mutex);
        endings.texts[static_cast<std::size_t>(t.rank())] = error.what();
        throw;
      }
    });
    ADD_FAILURE() << "run_ranks throws nothing";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::transport);
    endings.rethrown = error.what();
  }
  endings.seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  return endings;
}

/// Every rank sends `data` to the next and receives from the one before, `rounds` times.
void ring(Transport& t, int rounds) {
  const int next = (t.rank() + 1) % t.size(), previous = (t.rank() + t.size() - 1) % t.size();
  for (int round = 0; round < rounds; ++round) {
    const Data out = flat(100), in = flat(100);
    t.post(round, std::vector<Message>{{next, out.view}}, std::vector<Message>{{previous, in.view}});
    t.await(round);
    t.await_sent(round);
  }
}

TEST_P(TransportFailureSuite, ShapesThatDifferAreNamedToEverybody) {
  auto group = make_group({kNever, {}});
  const int last = ranks() - 1;
  const auto endings = run_to_failure(group, [&](Transport& t) {
    const Data seven = flat(7), eight = flat(8);
    std::vector<Message> sends, receives;
    if (t.rank() == 0) sends.push_back({last, seven.view});
    if (t.rank() == last) receives.push_back({0, eight.view});
    t.post(5, sends, receives);
    t.await(5);
    t.await_sent(5);
    (void)t.all_gather_text("");
  });
  const auto want = "rank 0 sends fp32[1, 7, 1, 1], rank " + std::to_string(last) + " receives fp32[1, 8, 1, 1]";
  for (const auto& text : endings.texts) EXPECT_TRUE(contains(text, want)) << text;
  EXPECT_TRUE(contains(endings.rethrown, "exchange 5, message 0 differs"));
  EXPECT_FALSE(contains(endings.rethrown, "failed:"));
  EXPECT_LT(endings.seconds, 10);
}

TEST_P(TransportFailureSuite, DtypesThatDiffer) {
  auto group = make_group({kNever, {}});
  const auto endings = run_to_failure(group, [](Transport& t) {
    std::vector<float> memory(8);
    const auto view = [&](DType dtype) { return make_view(memory.data(), dtype, Layout::bshd, 1, 4, 1, 1); };
    if (t.rank() == 0) t.post(0, std::vector<Message>{{1, view(DType::bf16)}}, {});
    if (t.rank() == 1) t.post(0, {}, std::vector<Message>{{0, view(DType::fp16)}});
    (void)t.all_gather_text("");
  });
  EXPECT_TRUE(contains(endings.rethrown, "rank 0 sends bf16[1, 4, 1, 1], rank 1 receives fp16[1, 4, 1, 1]"))
      << endings.rethrown;
}

TEST_P(TransportFailureSuite, NumbersOfMessagesThatDiffer) {
  auto group = make_group({kNever, {}});
  const auto endings = run_to_failure(group, [](Transport& t) {
    const Data data = flat(4);
    if (t.rank() == 0) t.post(2, std::vector<Message>{{1, data.view}, {1, data.view}}, {});
    if (t.rank() == 1) t.post(2, {}, std::vector<Message>{{0, data.view}});
    (void)t.all_gather_text("");
  });
  EXPECT_TRUE(contains(endings.rethrown,
                       "exchange 2 differs between rank 0 and rank 1: rank 0 sends 2 messages, rank 1 "
                       "receives 1"))
      << endings.rethrown;
}

TEST_P(TransportFailureSuite, ExchangesThatDiffer) {
  auto group = make_group({kNever, {}});
  const auto endings = run_to_failure(group, [](Transport& t) {
    const Data data = flat(4);
    if (t.rank() == 0) t.post(2, std::vector<Message>{{1, data.view}}, {});
    if (t.rank() == 1) t.post(3, {}, std::vector<Message>{{0, data.view}});
    (void)t.all_gather_text("");
  });
  EXPECT_TRUE(contains(endings.rethrown, "exchanges differ between rank 0 and rank 1")) << endings.rethrown;
}

TEST_P(TransportFailureSuite, OwnMessagesThatDiffer) {
  auto group = make_group({kNever, {}});
  const auto endings = run_to_failure(group, [](Transport& t) {
    const Data data = flat(4);
    if (t.rank() == 1) t.post(2, std::vector<Message>{{1, data.view}}, {});
    (void)t.all_gather_text("");
  });
  EXPECT_TRUE(contains(endings.rethrown, "rank 1 sends 1 messages to itself and receives 0")) << endings.rethrown;
}

TEST_P(TransportFailureSuite, ASilentPeerIsATimeout) {
  auto group = make_group({150ms, {}});
  const auto endings = run_to_failure(group, [](Transport& t) {
    const Data data = flat(4);
    if (t.rank() == 0) {
      t.post(4, {}, std::vector<Message>{{1, data.view}});
      t.await(4);
    } else {
      while (true) {  // busy with something else, and in no call when the others give up
        nap(500);
        t.post(0, {}, {});
      }
    }
  });
  EXPECT_EQ(endings.rethrown, "rank 0 waited 0.15 s for rank 1 to send exchange 4");
  EXPECT_EQ(endings.texts[1], "rank 0 failed: " + endings.rethrown);
  EXPECT_GT(endings.seconds, 0.14);
}

TEST_P(TransportFailureSuite, APeerThatNeverReceivesIsATimeout) {
  auto group = make_group({150ms, {}});
  const auto endings = run_to_failure(group, [](Transport& t) {
    const Data data = flat(4);
    if (t.rank() == 1) {
      t.post(4, std::vector<Message>{{0, data.view}}, {});
      t.await_sent(4);
    }
    if (t.rank() == 0) nap(500);
  });
  EXPECT_EQ(endings.rethrown, "rank 1 waited 0.15 s for rank 0 to receive exchange 4");
}

TEST_P(TransportFailureSuite, AnAgreementThatARankMissesIsATimeout) {
  auto group = make_group({150ms, {}});
  const auto endings = run_to_failure(group, [](Transport& t) {
    (void)t.all_gather_text("first");
    if (t.rank() == 1) nap(600);
    (void)t.all_gather_text("second");
  });
  EXPECT_TRUE(contains(endings.rethrown, "waited 0.15 s for rank 1 to join agreement 1")) << endings.rethrown;
}

// Rank 0 waits for 1, which waits for 2, which is late: the sentence names it.
TEST_P(TransportFailureSuite, TheEndOfAChainOfWaitsIsNamed) {
  if (ranks() < 3) return;
  auto group = make_group({500ms, {}});
  const auto endings = run_to_failure(group, [](Transport& t) {
    (void)t.all_gather_text("");
    const Data data = flat(4);
    if (t.rank() == 0) t.post(0, {}, std::vector<Message>{{1, data.view}});
    if (t.rank() == 1) {
      nap(150);  // so that rank 0 gives up first
      t.post(0, {}, std::vector<Message>{{2, data.view}});
    }
    if (t.rank() < 2) t.await(0);
    nap(1000);
    (void)t.all_gather_text("");
  });
  EXPECT_EQ(endings.rethrown, "rank 0 waited 0.5 s for rank 1 to send exchange 0, which waits for rank 2");
}

TEST_P(TransportFailureSuite, AnErrorOfOneRankReachesAllAtOnce) {
  auto group = make_group({kNever, {}});
  const int guilty = ranks() - 1;
  const auto endings = run_to_failure(group, [&](Transport& t) {
    ring(t, 2);
    if (t.rank() == guilty) fail(ErrorKind::transport, "no more paper");
    ring(t, 5);
  });
  EXPECT_EQ(endings.rethrown, "no more paper");
  for (int rank = 0; rank < guilty; ++rank) {
    EXPECT_EQ(endings.texts[static_cast<std::size_t>(rank)],
              "rank " + std::to_string(guilty) + " failed: no more paper");
  }
  EXPECT_LT(endings.seconds, 10);
}

TEST_P(TransportFailureSuite, EveryCallThrowsAfterAnAbort) {
  auto group = make_group({kNever, {}});
  const auto endings = run_to_failure(group, [](Transport& t) {
    const Data out = flat(4), in = flat(4);
    t.post(0, std::vector<Message>{{t.rank(), out.view}}, std::vector<Message>{{t.rank(), in.view}});
    (void)t.all_gather_text("");
    if (t.rank() == 0) {
      t.abort("enough");
      t.abort("twice");
    } else {
      EXPECT_ERROR((void)t.all_gather_text(""), ErrorKind::transport, "rank 0 failed: enough");
    }
    EXPECT_ERROR(t.await(0), ErrorKind::transport, "rank 0 failed: enough");
    EXPECT_ERROR(t.await_sent(0), ErrorKind::transport, "rank 0 failed: enough");
    EXPECT_ERROR(t.post(1, {}, {}), ErrorKind::transport, "rank 0 failed: enough");
    (void)t.all_gather_text("");
  });
  EXPECT_EQ(endings.rethrown, "rank 0 failed: enough");
  EXPECT_ERROR(run_ranks(group, [](Transport& t) { ring(t, 1); }), ErrorKind::transport, "rank 0 failed: enough");
}

TEST_P(TransportFailureSuite, ForeignExceptionsAreRethrownAsTheyAre) {
  auto group = make_group({kNever, {}});
  std::atomic<int> told = 0;
  const auto body = [&](Transport& t) {
    if (t.rank() == 1) throw std::out_of_range("beyond");
    try {
      ring(t, 3);
      (void)t.all_gather_text("");
    } catch (const Error& error) {
      told += contains(error.what(), "rank 1 failed: beyond") ? 1 : 0;
      throw;
    }
  };
  EXPECT_THROW(run_ranks(group, body), std::out_of_range);
  EXPECT_EQ(told, ranks() - 1);

  auto other = make_group({kNever, {}});
  EXPECT_THROW(run_ranks(other,
                         [&](Transport& t) {
                           if (t.rank() == 0) throw 42;
                           ring(t, 1);
                         }),
               int);
}

TEST_P(TransportFailureSuite, ARankThatReturnsEarlyIsNoticedAtOnce) {
  auto group = make_group({kNever, {}});
  const auto endings = run_to_failure(group, [](Transport& t) { ring(t, t.rank() == 1 ? 1 : 3); });
  EXPECT_LT(endings.seconds, 10);
  EXPECT_TRUE(contains(endings.rethrown, "rank 1")) << endings.rethrown;
}

TEST_P(TransportFailureSuite, SendsOfARankThatReturnedAreGone) {
  auto group = make_group({kNever, {}});
  const auto endings = run_to_failure(group, [](Transport& t) {
    const Data data = flat(4);
    if (t.rank() == 1) t.post(0, std::vector<Message>{{0, data.view}}, {});  // and does not await
    if (t.rank() == 0) {
      nap(30);
      t.post(0, {}, std::vector<Message>{{1, data.view}});
      t.await(0);
    }
  });
  EXPECT_EQ(endings.rethrown, "rank 0 waits for rank 1 to send exchange 0, but rank 1 has left the group");
}

TEST_P(TransportFailureSuite, AnEndpointThatIsDestroyedHasLeft) {
  auto group = make_group({kNever, {}});
  const Data data = flat(4);
  group[0]->post(0, {}, std::vector<Message>{{1, data.view}});
  group[1].reset();
  EXPECT_ERROR(group[0]->await(0), ErrorKind::transport, "but rank 1 has left the group");
}

TEST_P(TransportFailureSuite, AGroupRunsAgainAfterARankLeftThingsBehind) {
  auto group = make_group({kNever, {}});
  run_ranks(group, [](Transport& t) {
    const Data data = flat(4);
    if (t.rank() == 1) t.post(0, std::vector<Message>{{0, data.view}}, {});  // nobody receives it
  });
  run_ranks(group, [](Transport& t) {
    (void)t.all_gather_text("");
    ring(t, 3);
  });
}

TEST_P(TransportFailureSuite, FaultThrows) {
  for (const int after : {0, 1, 3}) {
    auto group = make_group({kNever, {Fault::Kind::throws, 1, after}});
    const auto endings = run_to_failure(group, [](Transport& t) {
      (void)t.all_gather_text("");
      ring(t, 4);
      (void)t.all_gather_text("");
    });
    const auto where = after == 0 ? std::string("at the agreement") : "at its exchange number " + std::to_string(after);
    EXPECT_EQ(endings.rethrown, "injected fault: rank 1 throws " + where);
    EXPECT_EQ(endings.texts[0], "rank 1 failed: injected fault: rank 1 throws " + where);
    EXPECT_LT(endings.seconds, 10);
  }
}

TEST_P(TransportFailureSuite, FaultStalls) {
  for (const int after : {0, 2}) {
    auto group = make_group({200ms, {Fault::Kind::stalls, 1, after}});
    const auto endings = run_to_failure(group, [](Transport& t) {
      (void)t.all_gather_text("");
      ring(t, 4);
      (void)t.all_gather_text("");
    });
    EXPECT_TRUE(contains(endings.rethrown, "waited 0.2 s for rank")) << endings.rethrown;
    EXPECT_TRUE(contains(endings.rethrown, "rank 1")) << endings.rethrown;
    EXPECT_TRUE(contains(endings.texts[1], "failed: ")) << endings.texts[1];
    EXPECT_GT(endings.seconds, 0.19);
  }
}

TEST_P(TransportFailureSuite, AStallThatNobodyNoticesEnds) {
  auto group = make_group({kNever, {Fault::Kind::stalls, 1, 1}});
  const auto endings = run_to_failure(group, [](Transport& t) { t.post(0, {}, {}); });
  EXPECT_EQ(endings.rethrown, "injected fault: rank 1 stalls at its exchange number 1");
}

TEST_P(TransportFailureSuite, FaultDies) {
  for (const int after : {0, 1, 3}) {
    auto group = make_group({kNever, {Fault::Kind::dies, 1, after}});
    const auto endings = run_to_failure(group, [](Transport& t) {
      (void)t.all_gather_text("");
      ring(t, 4);
      (void)t.all_gather_text("");
    });
    EXPECT_TRUE(contains(endings.rethrown, "rank 1 has left the group")) << endings.rethrown;
    EXPECT_LT(endings.seconds, 10);
    EXPECT_EQ(endings.texts[1], "");  // not a word
  }
}

TEST_P(TransportFailureSuite, ADeathThatNobodyNeedsIsReportedInTheEnd) {
  auto group = make_group({kNever, {Fault::Kind::dies, 1, 1}});
  const auto endings = run_to_failure(group, [](Transport& t) { t.post(0, {}, {}); });
  EXPECT_EQ(endings.rethrown, "rank 1 ended before its work was done");
}

// Rank 1 fails while others copy from it, and its memory changes right after the abort: a receiver has either all of
// what was sent or an error. (Under a sanitizer the freed memory is watched too.)
TEST_P(TransportFailureSuite, NobodyReadsAFailedRanksMemory) {
  constexpr std::int64_t kElements = 1 << 18;
  for (int repeat = 0; repeat < 8; ++repeat) {
    auto group = make_group({kNever, {}});
    std::atomic<int> torn = 0;
    EXPECT_ERROR(run_ranks(group,
                           [&](Transport& t) {
                             if (t.rank() == 1) {
                               Data out = flat(kElements);
                               std::vector<Message> sends;
                               for (int peer = 0; peer < t.size(); ++peer) {
                                 if (peer != 1) sends.push_back({peer, out.view});
                               }
                               t.post(0, sends, {});
                               std::this_thread::sleep_for(std::chrono::microseconds(100 * repeat));
                               t.abort("gone");
                               std::ranges::fill(out.values, 0.0F);
                               fail(ErrorKind::transport, "gone");
                             }
                             const Data in = flat(kElements, 7);
                             t.post(0, {}, std::vector<Message>{{1, in.view}});
                             t.await(0);
                             torn += in.values == flat(kElements).values ? 0 : 1;
                           }),
                 ErrorKind::transport, "gone");
    EXPECT_EQ(torn, 0);
  }
}

}  // namespace
}  // namespace rotunda::testing
