// A group of ranks that holds its shards and works on command: the one way in which every command runs attention.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "rotunda/attention.hpp"
#include "rotunda/plan.hpp"

namespace rotunda::cli {

struct SessionSetup {
  Problem problem;
  PlanOptions options;
  int ranks = 1;
  std::chrono::milliseconds timeout{60'000};
  bool tracing = false;
  bool graph = false;  ///< work is captured into CUDA graphs once, and runs are their replays; not with tracing
  /// This process is one rank of `ranks`, on a transport between processes; else they are threads of this process.
  std::optional<ProcessGroup> process;
};

/// What one rank did. Events are in seconds since the session began, on one clock for all ranks.
struct RankReport {
  std::shared_ptr<const Plan> plan;
  RunStats forward, backward;  ///< of the last run of each
  std::vector<TraceEvent> events;
};

class Runner;

/// Ranks as threads, or this process as one of several that all make the same calls. Used by one thread. Every call
/// throws what a rank threw; after that only the destructor is of use.
class Session {
 public:
  /// Agrees on a plan and scatters the whole inputs. `inputs` must outlive the constructor only.
  Session(const SessionSetup& setup, const Tensors& inputs);
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  /// Each returns the seconds of the slowest rank, by its device's clock.
  double forward();
  double backward();
  /// Forward and, on every rank at once when its own forward is done, backward.
  double both();
  /// The same, back to back: nothing waits for a device between runs.
  std::vector<double> forward(int times);
  std::vector<double> backward(int times);
  std::vector<double> both(int times);

  /// Copies the ranks' results into whole tensors: rows by the shard, dsink summed in rank order, max_logit of rank 0.
  void gather(const Tensors& outputs) const;
  /// Rank 0's text on every rank; with threads, the text.
  [[nodiscard]] std::string from_first(const std::string& text);

  /// By rank; valid between calls.
  [[nodiscard]] const std::vector<RankReport>& reports() const;
  [[nodiscard]] const Plan& plan() const { return *reports().front().plan; }

 private:
  std::unique_ptr<Runner> runner_;
};

/// The greatest value of a field over ranks, forward or backward.
[[nodiscard]] std::int64_t peak_workspace_bytes(const std::vector<RankReport>& reports);
/// Bytes that all ranks sent, forward and backward.
[[nodiscard]] std::int64_t bytes_moved(const std::vector<RankReport>& reports);
/// Milliseconds that the rank worst off spent waiting, forward and backward together.
[[nodiscard]] double exposed_ms(const std::vector<RankReport>& reports);

}  // namespace rotunda::cli
