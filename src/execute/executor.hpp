// The executor: performs a program's steps. The only place that calls kernels and transports.
#pragma once

#include <chrono>
#include <vector>

#include "execute/binding.hpp"
#include "kernel/kernel.hpp"
#include "rotunda/attention.hpp"

namespace rotunda {

/// What an executor works with. Everything outlives it.
struct ExecutorResources {
  const Plan& plan;
  const Kernel& kernel;
  Transport& transport;
  ThreadPool& threads;
  std::span<std::byte> kernel_workspace;
};

/// Runs one program once. Steps run on the calling thread; exchanges run beside them as far as the transport can.
class Executor {
 public:
  /// events: where intervals are recorded, or nullptr. epoch: time 0 of the trace.
  Executor(const ExecutorResources& resources, const Program& program, const BoundBuffers& buffers,
           std::vector<TraceEvent>* events, std::chrono::steady_clock::time_point epoch);

  /// @throws whatever a kernel or the transport throws
  void run();

  /// Seconds spent waiting for exchanges.
  [[nodiscard]] double exposed_seconds() const { return exposed_seconds_; }

 private:
  void perform(const Post& step);
  void perform(const Await& step);
  void perform(const AwaitSent& step);
  void perform(const Fill& step);
  void perform(const Convert& step);
  void perform(const Add& step);
  void perform(const FillSink& step);
  void perform(const Delta& step);
  void perform(const Finish& step);
  void perform(const SinkGradient& step);
  void perform(const RowMax& step);
  void perform(const Attend& step);
  void perform(const AttendBackward& step);

  [[nodiscard]] TensorView view(const Region& region) const { return buffers_.view(region); }
  [[nodiscard]] const Exchange& exchange(int index) const;
  [[nodiscard]] std::vector<Message> messages(const std::vector<Transfer>& transfers) const;
  /// Sink logits of the query heads from `head` on; zeros for a sink that is no input.
  [[nodiscard]] const float* sink(std::int64_t head) const;
  [[nodiscard]] HeadMap head_map(int q_head, int kv_head) const;
  [[nodiscard]] KernelContext context() const { return {r_.threads, r_.kernel_workspace}; }

  const ExecutorResources& r_;
  const Program& program_;
  const BoundBuffers& buffers_;
  std::vector<TraceEvent>* events_;
  std::chrono::steady_clock::time_point epoch_;
  std::vector<float> sink_;
  double exposed_seconds_ = 0;
};

}  // namespace rotunda
