// The executor: performs a program's steps. The only place that calls kernels and transports.
#pragma once

#include <vector>

#include "execute/binding.hpp"
#include "execute/step_clock.hpp"
#include "execute/step_lists.hpp"
#include "kernel/elementwise/elementwise.hpp"
#include "kernel/kernel.hpp"
#include "rotunda/attention.hpp"

namespace rotunda {

/// What an executor works with. Everything outlives it.
struct ExecutorResources {
  const Plan& plan;
  const Kernel& kernel;
  Transport& transport;
  const Elementwise& elementwise;
  const StepLists& lists;
  KernelContext context;
  StepClock* clock = nullptr;  ///< times every step, where it is given
};

/// Runs one program once. The host's part runs on the calling thread; exchanges run beside it as far as the transport
/// can, and on a CUDA device all work is enqueued on the context's stream.
class Executor {
 public:
  Executor(const ExecutorResources& resources, const Program& program, const BoundBuffers& buffers)
      : r_(resources), program_(program), buffers_(buffers) {}

  /// @throws whatever a kernel or the transport throws
  void run();

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

  /// What a forward and a backward call have in common.
  template <class Args>
  void fill_inputs(const auto& step, Args& args) const;

  [[nodiscard]] TensorView view(const Region& region) const { return buffers_.view(region); }
  [[nodiscard]] const Exchange& exchange(int index) const;
  [[nodiscard]] std::vector<Message> messages(const std::vector<Transfer>& transfers) const;
  /// Sink logits of `heads` query heads from `head` on; without data for a sink that is no input.
  [[nodiscard]] TensorView sink(std::int64_t head, std::int64_t heads) const;
  [[nodiscard]] HeadMap head_map(int q_head, int kv_head) const;

  const ExecutorResources& r_;
  const Program& program_;
  const BoundBuffers& buffers_;
};

}  // namespace rotunda
