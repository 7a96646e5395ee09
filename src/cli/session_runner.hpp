// One rank's part of a session: its tensors, its attention, and what it reports. Threads and processes do the same
// work.
#pragma once

#include <chrono>

#include "cli/rank_tensors.hpp"
#include "cli/session.hpp"

namespace rotunda::cli {

/// What every rank does at once.
struct Task {
  bool forward = false, backward = false;
  int times = 1;
};

/// A group of ranks at work, behind Session.
class Runner {
 public:
  virtual ~Runner() = default;
  /// Seconds of each run, of the slowest rank.
  virtual std::vector<double> run(const Task& task) = 0;
  virtual void gather(const Tensors& outputs) = 0;
  [[nodiscard]] virtual const std::vector<RankReport>& reports() const = 0;
  [[nodiscard]] virtual std::string from_first(const std::string& text) = 0;
};

/// Ranks as threads of this process. `inputs` must outlive the call only.
[[nodiscard]] std::unique_ptr<Runner> run_threads(const SessionSetup& setup, const Tensors& inputs);
/// The same, with the work of all ranks in CUDA graphs. @throws Error unsupported on host memory
[[nodiscard]] std::unique_ptr<Runner> run_graphs(const SessionSetup& setup, const Tensors& inputs);
/// This process as one rank of setup.process.
[[nodiscard]] std::unique_ptr<Runner> run_one_process(const SessionSetup& setup, const Tensors& inputs);

using SessionClock = std::chrono::steady_clock;

class RankWork {
 public:
  /// Agrees on a plan and scatters this rank's rows of the whole inputs. Collective.
  RankWork(const SessionSetup& setup, Transport& transport, const Tensors& inputs, SessionClock::time_point born);

  /// Seconds of each run, by the device's clock.
  [[nodiscard]] std::vector<double> perform(const Task& task);
  /// One run, on a stream of the caller's; nothing waits for the device.
  void enqueue(const Task& task, Stream stream);
  [[nodiscard]] const RankReport& report() const { return report_; }
  [[nodiscard]] RankTensors& tensors() { return tensors_; }

 private:
  void scatter_inputs(const Tensors& inputs);
  void collect_events();

  const SessionSetup& setup_;
  RankReport report_;
  OwnedStream stream_;
  RankTensors tensors_;
  Attention attention_;
  double offset_ = 0;  ///< of the attention's clock from the session's
};

/// The group that ranks as threads of this process are. @throws Error unsupported
[[nodiscard]] std::vector<std::unique_ptr<Transport>> make_group(const SessionSetup& setup);

/// Downloads the outputs of all ranks and puts them into the whole ones.
void gather_ranks(const Problem& problem, const std::vector<std::unique_ptr<RankWork>>& works, const Tensors& outputs);

/// Puts one rank's output, rows by the shard, into the whole one: dsink summed in rank order, max_logit of rank 0.
void gather_rank(const Plan& plan, int rank, const TensorKind& kind, const TensorView& local, const TensorView& whole);

}  // namespace rotunda::cli
