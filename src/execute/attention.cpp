#include "rotunda/attention.hpp"

#include <algorithm>
#include <cstring>
#include <exception>

#include "base/fail.hpp"
#include "base/memory.hpp"
#include "execute/binding.hpp"
#include "execute/executor.hpp"
#include "kernel/kernel.hpp"

namespace rotunda {

struct Attention::Impl {
  Impl(std::shared_ptr<const Plan> the_plan, Transport& the_transport)
      : plan(std::move(the_plan)),
        transport(the_transport),
        threads(plan->threads),
        memory(plan->peak_bytes()),
        epoch(std::chrono::steady_clock::now()) {
    kernel = find_kernel(plan->kernel);
    if (kernel == nullptr) fail(ErrorKind::unsupported, "kernel {} of the plan is not in this build", plan->kernel);
    if (transport.rank() != plan->rank || transport.size() != plan->ranks) {
      fail(ErrorKind::bad_input, "a plan for rank {} of {} runs on a transport that is rank {} of {}", plan->rank,
           plan->ranks, transport.rank(), transport.size());
    }
  }

  void run(const Program& program, const Tensors& tensors) {
    // A rank that fails must not leave the others waiting.
    try {
      check_tensors(program, tensors);
      if (poison && memory.bytes() > 0)
        std::memset(memory.data(), 0xff, static_cast<std::size_t>(memory.bytes()));  // all ones: NaN
      const std::int64_t kernel_offset = memory.bytes() - plan->kernel_workspace_bytes;
      const BoundBuffers buffers(program, tensors, memory.data());
      const std::span<std::byte> kernel_workspace{memory.data() + kernel_offset,
                                                  static_cast<std::size_t>(plan->kernel_workspace_bytes)};
      const ExecutorResources resources{*plan, *kernel, transport, threads, kernel_workspace};
      const TransportCounters before = transport.counters();
      const auto begin = std::chrono::steady_clock::now();
      Executor executor(resources, program, buffers, tracing ? &events : nullptr, epoch);
      executor.run();
      const TransportCounters after = transport.counters();
      stats.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
      stats.exposed_seconds = executor.exposed_seconds();
      stats.bytes_sent = after.bytes_sent - before.bytes_sent;
      stats.bytes_received = after.bytes_received - before.bytes_received;
      stats.workspace_bytes = program.workspace_bytes + plan->kernel_workspace_bytes;
    } catch (const std::exception& error) {
      transport.abort(error.what());
      throw;
    }
  }

  std::shared_ptr<const Plan> plan;
  Transport& transport;
  const Kernel* kernel = nullptr;
  ThreadPool threads;
  HostBuffer memory;  // planned buffers, then the kernel's scratch
  std::chrono::steady_clock::time_point epoch;
  RunStats stats;
  std::vector<TraceEvent> events;
  bool tracing = false;
  bool poison = false;
};

Attention::Attention(std::shared_ptr<const Plan> plan, Transport& transport)
    : impl_(std::make_unique<Impl>(std::move(plan), transport)) {}

Attention::~Attention() = default;

void Attention::forward(const Tensors& tensors) {
  impl_->run(impl_->plan->forward, tensors);
}

void Attention::backward(const Tensors& tensors) {
  if (!impl_->plan->backward) {
    fail(ErrorKind::bad_input, "backward of a plan without gradients; plan the problem with grad=1");
  }
  impl_->run(*impl_->plan->backward, tensors);
}

const Plan& Attention::plan() const {
  return *impl_->plan;
}

const RunStats& Attention::stats() const {
  return impl_->stats;
}

void Attention::set_tracing(bool on) {
  impl_->tracing = on;
  impl_->events.clear();
}

const std::vector<TraceEvent>& Attention::events() const {
  return impl_->events;
}

void Attention::set_poison(bool on) {
  impl_->poison = on;
}

}  // namespace rotunda
