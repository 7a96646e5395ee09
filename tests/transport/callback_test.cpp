// The callback transport, with ranks as threads and a host program that is a table of queues.
#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <thread>

#include "support/error_test.hpp"
#include "transport/process/process_failure_suite.hpp"

namespace rotunda::testing {
namespace {

using namespace std::chrono_literals;

/// The bytes under way between all ranks.
struct Post {
  std::mutex mutex;
  std::condition_variable news;
  std::map<std::pair<int, int>, std::deque<std::vector<std::byte>>> ways;  ///< by from, to
};

class QueueExchange final : public HostExchange {
 public:
  QueueExchange(std::shared_ptr<Post> post, int rank) : post_(std::move(post)), rank_(rank) {}

  std::int64_t send(int peer, std::span<const std::byte> bytes) override {
    const std::scoped_lock lock(post_->mutex);
    if (broken) throw std::runtime_error("no more stamps");
    post_->ways[{rank_, peer}].emplace_back(bytes.begin(), bytes.end());
    post_->news.notify_all();
    return -1;
  }

  std::int64_t receive(int peer, std::span<std::byte> bytes) override {
    const std::scoped_lock lock(post_->mutex);
    wanted_.emplace_back(peer, bytes);
    return static_cast<std::int64_t>(wanted_.size()) - 1;
  }

  void wait(std::int64_t ticket) override {
    if (ticket < 0) return;
    std::unique_lock lock(post_->mutex);
    const auto [peer, bytes] = wanted_[static_cast<std::size_t>(ticket)];
    auto& way = post_->ways[{peer, rank_}];
    post_->news.wait(lock, [&] { return stopped_ || !way.empty(); });
    if (stopped_) throw std::runtime_error("stopped");
    ASSERT_EQ(way.front().size(), bytes.size()) << "what a receive gets is as long as it says";
    std::memcpy(bytes.data(), way.front().data(), bytes.size());
    way.pop_front();
  }

  void stop() noexcept override {
    const std::scoped_lock lock(post_->mutex);
    stopped_ = true;
    post_->news.notify_all();
  }

  bool broken = false;

 private:
  std::shared_ptr<Post> post_;
  int rank_ = 0;
  bool stopped_ = false;
  std::vector<std::pair<int, std::span<std::byte>>> wanted_;
};

Group make_callback_group(int ranks, const LocalOptions& options) {
  const auto post = std::make_shared<Post>();
  return make_ends(ranks, options, [&](const ProcessOptions& process) {
    return make_callback_transport(process, std::make_shared<QueueExchange>(post, process.group.rank));
  });
}

const TransportCase kCallback{"callback", make_callback_group};

INSTANTIATE_TEST_SUITE_P(Callback, TransportSuite,
                         ::testing::Combine(::testing::Values(kCallback), ::testing::Range(1, 6)), suite_name);
INSTANTIATE_TEST_SUITE_P(Callback, ProcessFailureSuite, ::testing::Values(kCallback));

TEST(Callback, WhatTheHostProgramThrowsReachesEverybody) {
  const auto post = std::make_shared<Post>();
  std::vector<std::shared_ptr<QueueExchange>> exchanges(2);
  auto group = make_ends(2, {20s, {}, {}}, [&](const ProcessOptions& process) {
    auto& mine = exchanges[static_cast<std::size_t>(process.group.rank)];
    mine = std::make_shared<QueueExchange>(post, process.group.rank);
    return make_callback_transport(process, mine);
  });
  exchanges[1]->broken = true;
  const Data data = flat(4), in = flat(4);
  const auto texts = texts_of(group, [&](Transport& t) {
    t.post(0, std::vector<Message>{{1 - t.rank(), data.view}}, std::vector<Message>{{1 - t.rank(), in.view}});
    t.await(0);
  });
  EXPECT_EQ(texts[1], "the exchange of rank 1 failed: no more stamps");
  EXPECT_EQ(texts[0], "rank 1 failed: " + texts[1]);
}

TEST(Callback, AHostProgramThatDoesNotEndIsLeftToItself) {
  struct Deaf final : HostExchange {
    std::int64_t send(int, std::span<const std::byte>) override { return 0; }
    std::int64_t receive(int, std::span<std::byte>) override { return 0; }
    void wait(std::int64_t) override { std::this_thread::sleep_for(4s); }
    void stop() noexcept override {}
  };
  const auto begin = std::chrono::steady_clock::now();
  const Data data = flat(4);
  {
    auto group = make_ends(2, {200ms, {}, {}}, [](const ProcessOptions& process) {
      return make_callback_transport(process, std::make_shared<Deaf>());
    });
    const auto texts = texts_of(group, [&](Transport& t) {
      if (t.rank() == 1) return nap(500);
      t.post(0, {}, std::vector<Message>{{1, data.view}});
      t.await(0);
    });
    EXPECT_EQ(texts[0], "rank 0 waited 0.2 s for rank 1 to send exchange 0");
  }
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 4s);
}

TEST(Callback, MovesHostMemoryAlone) {
  ProcessOptions options{{0, 1, 0, "unix:/tmp/unused.sock", "test"}, 1s, cuda_device(0), {}};
  EXPECT_ERROR((void)make_callback_transport(options, nullptr), ErrorKind::unsupported, "use ipc or nccl there");
  options.device = {};
  EXPECT_ERROR((void)make_callback_transport(options, nullptr), ErrorKind::bad_input, "needs an exchange");
}

}  // namespace
}  // namespace rotunda::testing
