#include "transport/transport_suite.hpp"

#include <algorithm>
#include <string>
#include <vector>

#include "support/error_test.hpp"

namespace rotunda::testing {
namespace {

float element(const TensorView& view, std::int64_t b, std::int64_t row, std::int64_t head, std::int64_t dim) {
  return view.at<float>(b, row, head)[dim * view.stride[3]];
}

void expect_same(const TensorView& got, const TensorView& want) {
  ASSERT_EQ(got.shape, want.shape);
  std::int64_t wrong = 0;
  for (std::int64_t b = 0; b < got.batch(); ++b)
    for (std::int64_t row = 0; row < got.rows(); ++row)
      for (std::int64_t head = 0; head < got.heads(); ++head)
        for (std::int64_t dim = 0; dim < got.dim(); ++dim)
          wrong += element(got, b, row, head, dim) != element(want, b, row, head, dim) ? 1 : 0;
  EXPECT_EQ(wrong, 0);
}

/// What rank `from` sends to `to` in round `round`.
float tag(int from, int to, int round) {
  return static_cast<float>(100'000 * from + 10'000 * to + 1'000 * round);
}

void nap(int milliseconds) {
  std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
}

TEST_P(TransportSuite, EveryPairMovesEverySize) {
  auto group = make_group();
  run_ranks(group, [](Transport& t) {
    int id = 0;
    for (const std::int64_t size : {0, 1, 7, 300'000}) {
      std::vector<Data> out, in;
      std::vector<Message> sends, receives;
      for (int peer = 0; peer < t.size(); ++peer) {  // the own rank too
        out.push_back(flat(size, tag(t.rank(), peer, 0)));
        in.push_back(flat(size));
        sends.push_back({peer, out.back().view});
        receives.push_back({peer, in.back().view});
      }
      t.post(id, sends, receives);
      t.await(id);
      t.await_sent(id++);
      for (int peer = 0; peer < t.size(); ++peer) {
        expect_same(in[static_cast<std::size_t>(peer)].view, flat(size, tag(peer, t.rank(), 0)).view);
      }
    }
  });
}

TEST_P(TransportSuite, StridedViewsOnEitherSide) {
  auto group = make_group();
  const std::vector<Layout> layouts{Layout::bshd, Layout::sbhd, Layout::bhsd};
  run_ranks(group, [&](Transport& t) {
    const int next = (t.rank() + 1) % t.size(), previous = (t.rank() + t.size() - 1) % t.size();
    int id = 0;
    for (const Layout from : layouts) {
      for (const Layout to : layouts) {
        // Heads [1, 3) and rows [2, 7) of a tensor of 4 heads and 9 rows, into rows [3, 8) of a tensor of 8.
        const Data source(from, 2, 9, 4, 5, tag(t.rank(), next, 0)),
            wanted(from, 2, 9, 4, 5, tag(previous, t.rank(), 0));
        const Data target(to, 2, 8, 2, 5, 0.5F), before(to, 2, 8, 2, 5, 0.5F);
        const auto part = [](const Data& data) { return data.view.narrow_heads(1, 2).narrow_rows(2, 5); };
        t.post(id, std::vector<Message>{{next, part(source)}},
               std::vector<Message>{{previous, target.view.narrow_rows(3, 5)}});
        t.await_sent(id);
        t.await(id++);
        expect_same(target.view.narrow_rows(3, 5), part(wanted));
        expect_same(target.view.narrow_rows(0, 3), before.view.narrow_rows(0, 3));
      }
    }
  });
}

TEST_P(TransportSuite, SixteenBitPatternsArriveAsTheyAre) {
  auto group = make_group();
  run_ranks(group, [](Transport& t) {
    std::vector<std::uint16_t> all(65536), got(65536);
    for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::uint16_t>(i);
    for (const DType dtype : {DType::bf16, DType::fp16}) {
      std::ranges::fill(got, std::uint16_t{0});
      const int next = (t.rank() + 1) % t.size(), previous = (t.rank() + t.size() - 1) % t.size();
      const int id = dtype == DType::bf16 ? 0 : 1;
      t.post(id, std::vector<Message>{{next, make_view(all.data(), dtype, Layout::bshd, 1, 256, 2, 128)}},
             std::vector<Message>{{previous, make_view(got.data(), dtype, Layout::bshd, 1, 256, 2, 128)}});
      t.await(id);
      t.await_sent(id);
      EXPECT_EQ(got, all);
    }
  });
}

TEST_P(TransportSuite, SeveralMessagesOfAPairMeetInOrder) {
  auto group = make_group();
  run_ranks(group, [](Transport& t) {
    std::vector<Data> out, in;
    std::vector<Message> sends, receives;
    out.reserve(static_cast<std::size_t>(3 * t.size()));
    in.reserve(static_cast<std::size_t>(3 * t.size()));
    for (int i = 0; i < 3; ++i) {  // peers interleaved
      for (int peer = 0; peer < t.size(); ++peer) {
        out.push_back(flat(4 + i, tag(t.rank(), peer, i)));
        in.push_back(flat(4 + i));
        sends.push_back({peer, out.back().view});
        receives.push_back({peer, in.back().view});
      }
    }
    t.post(7, sends, receives);
    t.await(7);
    t.await_sent(7);
    for (int i = 0; i < 3; ++i)
      for (int peer = 0; peer < t.size(); ++peer)
        expect_same(in[static_cast<std::size_t>(i * t.size() + peer)].view, flat(4 + i, tag(peer, t.rank(), i)).view);
  });
}

// A ring with all exchanges in flight at once, awaited in another order, by ranks that are out of step.
TEST_P(TransportSuite, ManyExchangesInFlightOutOfStep) {
  auto group = make_group();
  constexpr int kRounds = 6;
  run_ranks(group, [](Transport& t) {
    const int next = (t.rank() + 1) % t.size(), previous = (t.rank() + t.size() - 1) % t.size();
    for (int repeat = 0; repeat < 3; ++repeat) {  // the same ids again
      std::vector<Data> out, in;
      for (int round = 0; round < kRounds; ++round) {
        out.push_back(flat(50, tag(t.rank(), next, round) + static_cast<float>(repeat)));
        in.push_back(flat(50));
      }
      for (int round = 0; round < kRounds; ++round) {
        const auto i = static_cast<std::size_t>(round);
        if ((t.rank() + round) % 3 == 0) nap(1);
        t.post(round, std::vector<Message>{{next, out[i].view}}, std::vector<Message>{{previous, in[i].view}});
      }
      for (int round = kRounds - 1; round >= 0; --round) {
        if (t.rank() % 2 == 0) t.await(round);
        t.await_sent(round);
        t.await(round);
        expect_same(in[static_cast<std::size_t>(round)].view,
                    flat(50, tag(previous, t.rank(), round) + static_cast<float>(repeat)).view);
      }
    }
  });
}

// Rank 0 runs ahead into the next run, whose exchange has the same id: the slow rank's must not meet it.
TEST_P(TransportSuite, AFastRanksNextRunMeetsNobodysPresentOne) {
  auto group = make_group();
  run_ranks(group, [](Transport& t) {
    if (t.rank() == 0) {
      for (int run = 0; run < 4; ++run) {
        std::vector<Data> out;
        std::vector<Message> sends;
        for (int peer = 1; peer < t.size(); ++peer) out.push_back(flat(10, tag(0, peer, run)));
        for (int peer = 1; peer < t.size(); ++peer)
          sends.push_back({peer, out[static_cast<std::size_t>(peer - 1)].view});
        t.post(0, sends, {});
        t.await_sent(0);
      }
    } else {
      for (int run = 0; run < 4; ++run) {
        nap(t.rank());
        const Data in = flat(10);
        t.post(0, {}, std::vector<Message>{{0, in.view}});
        t.await(0);
        expect_same(in.view, flat(10, tag(0, t.rank(), run)).view);
      }
    }
  });
}

TEST_P(TransportSuite, SentBuffersMayBeOverwritten) {
  auto group = make_group();
  run_ranks(group, [](Transport& t) {
    const int next = (t.rank() + 1) % t.size(), previous = (t.rank() + t.size() - 1) % t.size();
    Data out = flat(1000), in = flat(1000);
    for (int round = 0; round < 20; ++round) {
      std::ranges::fill(out.values, tag(t.rank(), next, round));
      t.post(round, std::vector<Message>{{next, out.view}}, std::vector<Message>{{previous, in.view}});
      t.await_sent(round);
      std::ranges::fill(out.values, -7.0F);
      t.await(round);
      EXPECT_EQ(in.values, std::vector<float>(1000, tag(previous, t.rank(), round)));
    }
  });
}

TEST_P(TransportSuite, ExchangesWithoutMessagesAndRanksWithoutPart) {
  auto group = make_group();
  run_ranks(group, [](Transport& t) {
    t.post(0, {}, {});
    t.await(0);
    t.await_sent(0);
    const Data out = flat(3, 5), in = flat(3);
    const int last = t.size() - 1;
    std::vector<Message> sends, receives;
    if (t.rank() == 0) sends.push_back({last, out.view});
    if (t.rank() == last) receives.push_back({0, in.view});
    if (!sends.empty() || !receives.empty()) {  // ranks between take no part in exchange 1
      t.post(1, sends, receives);
      t.await(1);
      t.await_sent(1);
    }
    if (t.rank() == last) expect_same(in.view, out.view);
  });
}

TEST_P(TransportSuite, TextIsGatheredInRankOrderAgainAndAgain) {
  auto group = make_group();
  run_ranks(group, [](Transport& t) {
    const auto text = [](int rank, int round) {
      return std::string(static_cast<std::size_t>(rank * round), 'x') + std::to_string(rank) + "/" +
             std::to_string(round);
    };
    const Data out = flat(3, 5), in = flat(3);
    t.post(0, std::vector<Message>{{t.rank(), out.view}}, std::vector<Message>{{t.rank(), in.view}});
    for (int round = 0; round < 5; ++round) {  // between a post and its await
      if (t.rank() == round) nap(2);
      std::vector<std::string> want;
      for (int rank = 0; rank < t.size(); ++rank) want.push_back(text(rank, round));
      EXPECT_EQ(t.all_gather_text(text(t.rank(), round)), want);
    }
    t.await(0);
    t.await_sent(0);
    EXPECT_EQ(t.all_gather_text(""), std::vector<std::string>(static_cast<std::size_t>(t.size())));
  });
}

TEST_P(TransportSuite, CountersCountWhatTravelled) {
  auto group = make_group();
  run_ranks(group, [](Transport& t) {
    const int next = (t.rank() + 1) % t.size(), previous = (t.rank() + t.size() - 1) % t.size();
    const Data out = flat(30), in = flat(30), none = flat(0);
    t.post(0, std::vector<Message>{{next, out.view}, {next, none.view}},
           std::vector<Message>{{previous, in.view}, {previous, none.view}});
    t.await(0);
    t.await_sent(0);
    const bool travels = t.size() > 1;  // what a rank sends to itself does not
    EXPECT_EQ(t.counters().bytes_sent, travels ? 120 : 0);
    EXPECT_EQ(t.counters().bytes_received, travels ? 120 : 0);
    EXPECT_EQ(t.counters().messages_sent, travels ? 2 : 0);
    EXPECT_EQ(t.counters().messages_received, travels ? 2 : 0);
  });
}

TEST_P(TransportSuite, AGroupRunsAgain) {
  auto group = make_group();
  for (int run = 0; run < 3; ++run) {
    run_ranks(group, [&](Transport& t) {
      const int next = (t.rank() + 1) % t.size(), previous = (t.rank() + t.size() - 1) % t.size();
      const Data out = flat(9, tag(t.rank(), next, run)), in = flat(9);
      EXPECT_EQ(t.all_gather_text("run").size(), static_cast<std::size_t>(t.size()));
      t.post(0, std::vector<Message>{{next, out.view}}, std::vector<Message>{{previous, in.view}});
      t.await_sent(0);
      t.await(0);
      expect_same(in.view, flat(9, tag(previous, t.rank(), run)).view);
    });
  }
}

TEST_P(TransportSuite, WrongCallsAreRefused) {
  auto group = make_group();
  run_ranks(group, [](Transport& t) {
    const Data out = flat(3), in = flat(3);
    EXPECT_ERROR(t.await(3), ErrorKind::internal, "awaits exchange 3, which it has not posted");
    EXPECT_ERROR(t.await_sent(4), ErrorKind::internal, "awaits exchange 4, which it has not posted");
    EXPECT_ERROR(t.post(0, std::vector<Message>{{t.size(), out.view}}, {}), ErrorKind::internal,
                 "the group has ranks 0 to");
    EXPECT_ERROR(t.post(0, {}, std::vector<Message>{{-1, in.view}}), ErrorKind::internal, "names rank -1");
    t.post(0, std::vector<Message>{{t.rank(), out.view}}, std::vector<Message>{{t.rank(), in.view}});
    t.await(0);
    EXPECT_ERROR(t.post(0, {}, {}), ErrorKind::internal, "posts exchange 0 again");
    t.await_sent(0);
    t.post(0, {}, {});
    t.post(0, {}, {});  // without messages there is nothing to await
  });
}

}  // namespace
}  // namespace rotunda::testing
