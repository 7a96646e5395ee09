// Attention: runs a plan on one rank's tensors.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "rotunda/device.hpp"
#include "rotunda/plan.hpp"
#include "rotunda/tensor.hpp"
#include "rotunda/transport.hpp"

namespace rotunda {

/// One rank's tensors, rows as its shard says, axes [batch, row, head, dim] with any strides (last axis contiguous).
/// q [b, rows_q, h_q, d], k [b, rows_k, h_kv, d], v [b, rows_k, h_kv, d_v], out and dout as q with d_v, lse
/// [b, rows_q, h_q, 1] fp32; sink, max_logit, dsink [1, 1, h_q, 1] fp32. thd: b = 1.
/// max_logit is the whole group's; dsink is the local rows' part, to be summed over ranks like any parameter's
/// gradient.
struct Tensors {
  TensorView q{}, k{}, v{}, sink{};
  TensorView out{}, lse{}, max_logit{};
  TensorView dout{}, dq{}, dk{}, dv{}, dsink{};
  /// Backward, may be left out: where lse takes part in what is differentiated, minus its gradient, as lse.
  TensorView minus_dlse{};
  /// May be left out: memory of the plan's device for this run, at least Attention::workspace_bytes(), aligned to 64
  /// bytes (CUDA: 256). Nothing is kept in it between runs.
  std::span<std::byte> workspace{};
};

/// An interval on a rank's lane, for traces. Times in seconds since the executor was made.
struct TraceEvent {
  enum class Lane { compute, communication } lane;
  std::string name;
  double begin = 0, end = 0;
};

/// What a run moved and held.
struct RunStats {
  std::int64_t bytes_sent = 0, bytes_received = 0;
  std::int64_t workspace_bytes = 0;  ///< exact: planned buffers and the kernel's scratch
  double seconds = 0;
  double exposed_seconds = 0;  ///< spent waiting for exchanges
};

/// Runs a plan. One thread a rank; the plan may be shared. forward and backward are collective. Tensors are checked
/// against the plan before anything moves (@throws Error bad_input on every rank that has a wrong one, and the others
/// learn of it as Error transport). backward takes q, k, v, out, lse as forward left them, keeps nothing between calls
/// and overwrites the gradients: calling it twice gives the same result.
///
/// On a CUDA device the tensors lie in the plan's device, both calls only enqueue work behind what `stream` holds, and
/// the results are there when the stream gets to what follows; the host waits for peers' hosts, never for the device.
/// Calls on one object follow each other: the workspace is shared, so a second stream must wait for the first. After a
/// first call of each, both can be captured into a CUDA graph.
class Attention {
 public:
  Attention(std::shared_ptr<const Plan> plan, Transport& transport);
  ~Attention();
  Attention(const Attention&) = delete;
  Attention& operator=(const Attention&) = delete;

  void forward(const Tensors& tensors, Stream stream = {});
  void backward(const Tensors& tensors, Stream stream = {});

  [[nodiscard]] const Plan& plan() const;
  /// What a run needs beyond tensors. Where they bring none it is allocated at the first run and kept.
  [[nodiscard]] std::int64_t workspace_bytes() const;
  /// Of the last forward or backward. On a CUDA device this waits for its end; exposed_seconds only with tracing.
  [[nodiscard]] const RunStats& stats() const;
  /// Records every step from now on; events() returns what was recorded since (on a CUDA device it waits for the end).
  void set_tracing(bool on);
  [[nodiscard]] const std::vector<TraceEvent>& events() const;
  /// Workspace is filled with NaN before each run (tests).
  void set_poison(bool on);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace rotunda
