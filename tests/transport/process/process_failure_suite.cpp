#include "transport/process/process_failure_suite.hpp"

#include <mutex>
#include <thread>

#include "support/error_test.hpp"
#include "transport/process/forked_ranks.hpp"

namespace rotunda::testing {

using namespace std::chrono_literals;

Group make_ends(int ranks, const LocalOptions& options,
                const std::function<std::unique_ptr<Transport>(const ProcessOptions&)>& make) {
  const std::string address = unix_address();
  Group group(static_cast<std::size_t>(ranks));
  {
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < ranks; ++rank) {
      threads.emplace_back([&, rank] {
        ProcessOptions process{{rank, ranks, rank, address, "test"}, options.timeout, {}, options.fault};
        process.device = {};
        group[static_cast<std::size_t>(rank)] = make(process);
      });
    }
  }
  return group;
}

std::vector<std::string> texts_of(Group& group, const std::function<void(Transport&)>& body) {
  std::vector<std::string> texts(group.size());
  std::vector<std::jthread> threads;
  for (auto& transport : group) {
    threads.emplace_back([&texts, &body, &transport] {
      const auto at = static_cast<std::size_t>(transport->rank());
      try {
        body(*transport);
      } catch (const Error& error) {
        texts[at] = error.what();
        transport->abort(error.what());
      }
    });
  }
  threads.clear();
  return texts;
}

namespace {

void lasting_ring(Transport& t, int rounds) {
  const int next = (t.rank() + 1) % t.size(), previous = (t.rank() + t.size() - 1) % t.size();
  static std::mutex mutex;
  static std::vector<Data> kept;  // peers read it whatever happens to this rank
  for (int round = 0; round < rounds; ++round) {
    TensorView out, in;
    {
      const std::scoped_lock lock(mutex);
      out = kept.emplace_back(flat(100)).view;
      in = kept.emplace_back(flat(100)).view;
    }
    t.post(round, std::vector<Message>{{next, out}}, std::vector<Message>{{previous, in}});
    t.await(round);
    t.await_sent(round);
  }
}

TEST_P(ProcessFailureSuite, DisagreementsReachEverybody) {
  auto group = make_group(3, {20s, {}, {}});
  const Data seven = flat(7), eight = flat(8);
  const auto texts = texts_of(group, [&](Transport& t) {
    std::vector<Message> sends, receives;
    if (t.rank() == 0) sends.push_back({2, seven.view});
    if (t.rank() == 2) receives.push_back({0, eight.view});
    t.post(5, sends, receives);
    t.await(5);
    t.await_sent(5);
    (void)t.all_gather_text("");
  });
  for (const auto& text : texts) {
    EXPECT_NE(text.find("rank 0 sends fp32[1, 7, 1, 1], rank 2 receives fp32[1, 8, 1, 1]"), std::string::npos) << text;
  }
}

TEST_P(ProcessFailureSuite, NumbersOfMessagesThatDiffer) {
  auto group = make_group(2, {20s, {}, {}});
  const Data data = flat(4);
  const auto texts = texts_of(group, [&](Transport& t) {
    if (t.rank() == 0) t.post(2, std::vector<Message>{{1, data.view}, {1, data.view}}, {});
    if (t.rank() == 1) t.post(2, {}, std::vector<Message>{{0, data.view}});
    t.await(2);
    (void)t.all_gather_text("");
  });
  for (const auto& text : texts) {
    EXPECT_NE(text.find("rank 0 sends 2 messages, rank 1 receives 1"), std::string::npos) << text;
  }
}

TEST_P(ProcessFailureSuite, ALateRankIsNamed) {
  auto group = make_group(2, {400ms, {}, {}});
  const Data data = flat(4);
  const auto texts = texts_of(group, [&](Transport& t) {
    if (t.rank() == 1) return nap(900);
    t.post(4, {}, std::vector<Message>{{1, data.view}});
    t.await(4);
  });
  EXPECT_EQ(texts[0], "rank 0 waited 0.4 s for rank 1 to send exchange 4");
}

TEST_P(ProcessFailureSuite, ARankThatHasLeftIsNamedAtOnce) {
  auto group = make_group(2, {20s, {}, {}});
  group[1].reset();
  const Data data = flat(4);
  group[0]->post(0, {}, std::vector<Message>{{1, data.view}});
  EXPECT_ERROR(group[0]->await(0), ErrorKind::transport, "but rank 1 has left the group");
}

TEST_P(ProcessFailureSuite, ARankThatWantsToAgreeOnSomethingElseIsNamed) {
  auto group = make_group(3, {20s, {}, {}});
  const Data data = flat(4);
  const auto begin = std::chrono::steady_clock::now();
  const auto texts = texts_of(group, [&](Transport& t) {
    (void)t.all_gather_text("the same");
    if (t.rank() == 2) {
      (void)t.all_gather_text("another");
    } else {
      t.post(0, {}, std::vector<Message>{{2, data.view}});
      t.await(0);
    }
  });
  for (const auto& text : texts) {
    EXPECT_NE(text.find("but rank 2 waits to agree on another problem"), std::string::npos) << text;
  }
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 15s);
}

TEST_P(ProcessFailureSuite, FaultsEndTheOthers) {
  for (const Fault::Kind kind : {Fault::Kind::throws, Fault::Kind::stalls}) {
    for (const int after : {0, 1, 3}) {
      auto group = make_group(3, {500ms, {kind, 1, after}, {}});
      const auto texts = texts_of(group, [](Transport& t) {
        (void)t.all_gather_text("");
        lasting_ring(t, 4);
        (void)t.all_gather_text("");
      });
      for (const auto& text : texts) EXPECT_NE(text.find("rank 1"), std::string::npos) << text;
    }
  }
}

TEST_P(ProcessFailureSuite, EveryCallThrowsAfterAnAbort) {
  auto group = make_group(2, {20s, {}, {}});
  const Data data = flat(4);
  const auto texts = texts_of(group, [&](Transport& t) {
    if (t.rank() == 0) {
      t.abort("enough");
      t.abort("twice");
    }
    if (t.rank() == 1) EXPECT_ERROR((void)t.all_gather_text(""), ErrorKind::transport, "rank 0 failed: enough");
    EXPECT_ERROR(t.post(1, {}, {}), ErrorKind::transport, "rank 0 failed: enough");
    EXPECT_ERROR(t.await(0), ErrorKind::transport, "rank 0 failed: enough");
    EXPECT_ERROR(t.await_sent(0), ErrorKind::transport, "rank 0 failed: enough");
  });
  EXPECT_EQ(texts[0] + texts[1], "");
}

TEST_P(ProcessFailureSuite, ManyMessagesInOneExchange) {
  auto group = make_group(2, {20s, {}, {}});
  const Data out = flat(5000), in = flat(5000, 0.5F);
  const auto texts = texts_of(group, [&](Transport& t) {
    std::vector<Message> messages;
    const TensorView& view = t.rank() == 0 ? out.view : in.view;
    for (std::int64_t i = 0; i < 5000; ++i) messages.push_back({1 - t.rank(), view.narrow_rows(i, 1)});
    if (t.rank() == 0) {
      t.post(0, messages, {});
      t.await_sent(0);
    } else {
      t.post(0, {}, messages);
      t.await(0);
    }
  });
  EXPECT_EQ(texts[0] + texts[1], "");
  EXPECT_EQ(in.values, out.values);
}

}  // namespace
}  // namespace rotunda::testing
