// A fixed number of threads that work through numbered tasks.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

namespace rotunda {

/// `threads` workers, the caller among them: ThreadPool(1) starts no thread. Used by one caller at a time.
class ThreadPool {
 public:
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  [[nodiscard]] int threads() const;

  /// Calls body(task, worker) for every task in [0, tasks), worker in [0, threads()). Tasks are handed out in ascending
  /// order, so a task may wait for a lower one. Returns when all are done; rethrows the first exception.
  void parallel(std::int64_t tasks, const std::function<void(std::int64_t, int)>& body);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace rotunda
