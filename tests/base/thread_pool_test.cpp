#include "base/thread_pool.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <set>
#include <stdexcept>
#include <thread>
#include <vector>

namespace rotunda {
namespace {

TEST(ThreadPool, DoesEveryTaskOnce) {
  for (const int threads : {1, 2, 3, 8}) {
    ThreadPool pool(threads);
    EXPECT_EQ(pool.threads(), threads);
    for (const std::int64_t tasks : {0, 1, 2, 7, 1000}) {
      std::vector<std::atomic<int>> done(static_cast<std::size_t>(tasks));
      std::atomic<int> strangers = 0;
      pool.parallel(tasks, [&](std::int64_t task, int worker) {
        ++done[static_cast<std::size_t>(task)];
        if (worker < 0 || worker >= threads) ++strangers;
      });
      for (const auto& count : done) EXPECT_EQ(count, 1);
      EXPECT_EQ(strangers, 0);
    }
  }
}

TEST(ThreadPool, AWorkersNumberIsOneThreadsAtATime) {
  ThreadPool pool(4);
  std::vector<std::atomic<int>> inside(4);
  std::atomic<int> clashes = 0;
  pool.parallel(500, [&](std::int64_t, int worker) {
    if (++inside[static_cast<std::size_t>(worker)] != 1) ++clashes;
    std::this_thread::yield();
    --inside[static_cast<std::size_t>(worker)];
  });
  EXPECT_EQ(clashes, 0);
}

TEST(ThreadPool, OneThreadIsTheCallers) {
  ThreadPool pool(1);
  std::set<std::thread::id> threads;
  pool.parallel(10, [&](std::int64_t, int) { threads.insert(std::this_thread::get_id()); });
  EXPECT_EQ(threads, std::set{std::this_thread::get_id()});
}

// Tasks are handed out in ascending order, so waiting for a lower one always ends.
TEST(ThreadPool, ATaskMayWaitForALowerOne) {
  ThreadPool pool(3);
  std::atomic<std::int64_t> finished = 0;
  pool.parallel(200, [&](std::int64_t task, int) {
    while (finished.load() < task) std::this_thread::yield();
    ++finished;
  });
  EXPECT_EQ(finished, 200);
}

TEST(ThreadPool, RethrowsAndWorksOn) {
  for (const int threads : {1, 4}) {
    ThreadPool pool(threads);
    EXPECT_THROW(pool.parallel(100,
                               [](std::int64_t task, int) {
                                 if (task == 13) throw std::out_of_range("thirteen");
                               }),
                 std::out_of_range);
    std::atomic<int> done = 0;
    pool.parallel(100, [&](std::int64_t, int) { ++done; });
    EXPECT_EQ(done, 100);
  }
}

}  // namespace
}  // namespace rotunda
