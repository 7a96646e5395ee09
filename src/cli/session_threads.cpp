// Ranks as threads of this process.
#include <algorithm>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>

#include "base/fail.hpp"
#include "cli/session_runner.hpp"

namespace rotunda::cli {
namespace {

/// The ranks' threads wait for a task number beyond the last one they did. Whoever fails marks the session, so that
/// ranks that wait for a task leave too; those that wait for a peer learn of it from the transport.
class Threads final : public Runner {
 public:
  Threads(const SessionSetup& setup, const Tensors& inputs) : setup_(setup) {
    const auto ranks = static_cast<std::size_t>(setup.ranks);
    works_.resize(ranks);
    reports_.resize(ranks);
    seconds_.resize(ranks);
    driver_ = std::thread([this, &inputs] { drive(inputs); });
    try {
      wait_for_ranks();
    } catch (...) {
      leave();
      throw;
    }
  }

  ~Threads() override { leave(); }

  std::vector<double> run(const Task& next) override {
    {
      const std::scoped_lock lock(mutex_);
      if (ended_) fail(ErrorKind::internal, "a session was used after it had failed");
      task_ = next;
      finished_ = 0;
      ++number_;
      wake_.notify_all();
    }
    wait_for_ranks();
    std::vector<double> slowest = seconds_.front();
    for (const auto& of_rank : seconds_) {
      for (std::size_t i = 0; i < slowest.size(); ++i) slowest[i] = std::max(slowest[i], of_rank[i]);
    }
    return slowest;
  }

  void gather(const Tensors& outputs) override { gather_ranks(setup_.problem, works_, outputs); }

  [[nodiscard]] const std::vector<RankReport>& reports() const override { return reports_; }
  [[nodiscard]] std::string from_first(const std::string& text) override { return text; }

 private:
  void drive(const Tensors& inputs) {
    try {
      auto group = make_group(setup_);
      run_ranks(group, [&](Transport& transport) { serve(transport, inputs); });
    } catch (...) {
      error_ = std::current_exception();
    }
    const std::scoped_lock lock(mutex_);
    ended_ = true;
    done_.notify_all();
  }

  void serve(Transport& transport, const Tensors& inputs) {
    try {
      work(transport, inputs);
    } catch (...) {
      works_[static_cast<std::size_t>(transport.rank())] = nullptr;  // before its transport
      const std::scoped_lock lock(mutex_);
      leaving_ = true;
      wake_.notify_all();
      throw;
    }
  }

  void work(Transport& transport, const Tensors& inputs) {
    const auto at = static_cast<std::size_t>(transport.rank());
    auto& mine = works_[at];
    mine = std::make_unique<RankWork>(setup_, transport, inputs, born_);
    reports_[at] = mine->report();
    for (int next = 1; finish_and_wait(next); ++next) {
      seconds_[at] = mine->perform(task_);
      reports_[at] = mine->report();
    }
    mine = nullptr;  // before its transport
  }

  /// Reports the task before `next` as done and waits for `next`; false: leave.
  bool finish_and_wait(int next) {
    std::unique_lock lock(mutex_);
    if (++finished_ == setup_.ranks) done_.notify_all();
    wake_.wait(lock, [&] { return leaving_ || number_ >= next; });
    return !leaving_;
  }

  void wait_for_ranks() {
    {
      std::unique_lock lock(mutex_);
      done_.wait(lock, [&] { return ended_ || finished_ == setup_.ranks; });
      if (!ended_) return;
    }
    driver_.join();
    if (error_) std::rethrow_exception(error_);
    fail(ErrorKind::internal, "the ranks left without a result");
  }

  void leave() {
    if (!driver_.joinable()) return;
    {
      const std::scoped_lock lock(mutex_);
      leaving_ = true;
      wake_.notify_all();
    }
    driver_.join();
  }

  const SessionSetup setup_;
  SessionClock::time_point born_ = SessionClock::now();
  std::vector<std::unique_ptr<RankWork>> works_;
  std::vector<RankReport> reports_;
  std::vector<std::vector<double>> seconds_;  ///< by rank: of each run of the task at hand

  std::mutex mutex_;
  std::condition_variable wake_, done_;
  Task task_;
  int number_ = 0;    ///< of the task at hand; 0 is the set-up
  int finished_ = 0;  ///< ranks that have done it
  bool leaving_ = false, ended_ = false;
  std::exception_ptr error_;
  std::thread driver_;
};

}  // namespace

std::unique_ptr<Runner> run_threads(const SessionSetup& setup, const Tensors& inputs) {
  return std::make_unique<Threads>(setup, inputs);
}

}  // namespace rotunda::cli
