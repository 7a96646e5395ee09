#include "base/thread_pool.hpp"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace rotunda {

struct ThreadPool::Impl {
  std::mutex mutex;
  std::condition_variable work, done;
  std::vector<std::thread> helpers;
  // The job at hand; generation tells helpers that there is a new one.
  const std::function<void(std::int64_t, int)>* body = nullptr;
  std::int64_t tasks = 0;
  std::atomic<std::int64_t> next{0};
  std::uint64_t generation = 0;
  int running = 0;
  bool stopping = false;
  std::exception_ptr error;

  void drain(int worker) {
    try {
      for (std::int64_t task = next++; task < tasks; task = next++) (*body)(task, worker);
    } catch (...) {
      const std::scoped_lock lock(mutex);
      if (!error) error = std::current_exception();
      next = tasks;
    }
  }

  void help(int worker) {
    std::uint64_t seen = 0;
    std::unique_lock lock(mutex);
    while (true) {
      work.wait(lock, [&] { return stopping || generation != seen; });
      if (stopping) return;
      seen = generation;
      lock.unlock();
      drain(worker);
      lock.lock();
      if (--running == 0) done.notify_one();
    }
  }
};

ThreadPool::ThreadPool(int threads) : impl_(std::make_unique<Impl>()) {
  for (int worker = 1; worker < threads; ++worker) {
    impl_->helpers.emplace_back([this, worker] { impl_->help(worker); });
  }
}

ThreadPool::~ThreadPool() {
  {
    const std::scoped_lock lock(impl_->mutex);
    impl_->stopping = true;
  }
  impl_->work.notify_all();
  for (auto& helper : impl_->helpers) helper.join();
}

int ThreadPool::threads() const {
  return static_cast<int>(impl_->helpers.size()) + 1;
}

void ThreadPool::parallel(std::int64_t tasks, const std::function<void(std::int64_t, int)>& body) {
  if (tasks <= 0) return;
  if (impl_->helpers.empty() || tasks == 1) {
    for (std::int64_t task = 0; task < tasks; ++task) body(task, 0);
    return;
  }
  {
    const std::scoped_lock lock(impl_->mutex);
    impl_->body = &body;
    impl_->tasks = tasks;
    impl_->next = 0;
    impl_->error = nullptr;
    impl_->running = static_cast<int>(impl_->helpers.size());
    ++impl_->generation;
  }
  impl_->work.notify_all();
  impl_->drain(0);
  std::unique_lock lock(impl_->mutex);
  impl_->done.wait(lock, [&] { return impl_->running == 0; });
  if (impl_->error) std::rethrow_exception(std::exchange(impl_->error, nullptr));
}

}  // namespace rotunda
