#include "rotunda/attention.hpp"

#include <algorithm>
#include <exception>
#include <utility>

#include "base/fail.hpp"
#include "base/memory.hpp"
#include "execute/binding.hpp"
#include "execute/executor.hpp"
#include "kernel/kernel.hpp"

namespace rotunda {
namespace {

std::shared_ptr<const Plan> given(std::shared_ptr<const Plan> plan) {
  if (plan == nullptr) fail(ErrorKind::bad_input, "attention without a plan; agree_on_plan and make_plan return one");
  return plan;
}

/// What kernels ask of their buffers.
std::uintptr_t workspace_alignment(const Device& device) {
  return device.is_cuda() ? 256 : kAlignment;
}

}  // namespace

struct Attention::Impl {
  Impl(std::shared_ptr<const Plan> the_plan, Transport& the_transport)
      : plan(given(std::move(the_plan))),
        transport(the_transport),
        threads(plan->threads),
        lists(programs(), plan->device),
        epoch(std::chrono::steady_clock::now()) {
    kernel = find_kernel(plan->kernel, plan->device.kind);
    if (kernel == nullptr) fail(ErrorKind::unsupported, "kernel {} of the plan is not in this build", plan->kernel);
    if (transport.rank() != plan->rank || transport.size() != plan->ranks) {
      fail(ErrorKind::bad_input, "a plan for rank {} of {} runs on a transport that is rank {} of {}", plan->rank,
           plan->ranks, transport.rank(), transport.size());
    }
    if (transport.device() != plan->device) {
      fail(ErrorKind::bad_input, "a plan for device {} runs on a transport of device {}", to_string(plan->device),
           to_string(transport.device()));
    }
  }

  [[nodiscard]] std::vector<const Program*> programs() const {
    std::vector<const Program*> result{&plan->forward};
    if (plan->backward) result.push_back(&*plan->backward);
    return result;
  }

  void run(const Program& program, const Tensors& tensors, Stream stream) {
    // A rank that fails must not leave the others waiting.
    try {
      check_tensors(program, tensors);
      check_lse_gradient(program, tensors);
      check_memory(program, tensors, plan->device);
      check_alignment(program, tensors, kernel->capabilities().alignment, plan->kernel);
      resolve();
      transport.use_stream(stream);
      const std::span<std::byte> workspace = workspace_of(tensors);
      const auto bytes = static_cast<std::int64_t>(workspace.size());
      if (poison) set_bytes(workspace.data(), 0xff, bytes, plan->device, stream);  // all ones: NaN
      const auto scratch = static_cast<std::size_t>(plan->kernel_workspace_bytes);
      const KernelContext context{threads, workspace.last(scratch), plan->device, stream};
      const bool cuda = plan->device.is_cuda();
      const auto elementwise = cuda ? cuda_elementwise(plan->device, stream) : host_elementwise(threads);
      const TransportCounters before = transport.counters();
      const auto begin = std::chrono::steady_clock::now();
      if (cuda && tracing) clock = cuda_clock(plan->device, stream, epoch);
      if (!cuda) clock = host_clock(epoch, tracing);
      const BoundBuffers buffers(program, tensors, workspace.data());
      Executor({*plan, *kernel, transport, *elementwise, lists, context, clock.get()}, program, buffers).run();
      const TransportCounters after = transport.counters();
      stats.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
      stats.bytes_sent = after.bytes_sent - before.bytes_sent;
      stats.bytes_received = after.bytes_received - before.bytes_received;
      stats.workspace_bytes = program.workspace_bytes + plan->kernel_workspace_bytes + plan->list_bytes;
    } catch (const std::exception& error) {
      transport.abort(error.what());
      throw;
    }
  }

  [[nodiscard]] std::int64_t workspace_bytes() const { return plan->peak_bytes() - plan->list_bytes; }

  /// The caller's memory for a run, or this object's own.
  std::span<std::byte> workspace_of(const Tensors& tensors) {
    const std::int64_t bytes = workspace_bytes();
    if (tensors.workspace.data() == nullptr) {
      if (memory.bytes() < bytes) memory = DeviceMemory(plan->device, bytes);
      return {memory.data(), static_cast<std::size_t>(bytes)};
    }
    const std::uintptr_t alignment = workspace_alignment(plan->device);
    if (static_cast<std::int64_t>(tensors.workspace.size()) < bytes ||
        reinterpret_cast<std::uintptr_t>(tensors.workspace.data()) % alignment != 0) {
      fail(ErrorKind::bad_input, "the workspace on rank {} has {} bytes at {}; needed: {}, aligned to {}", plan->rank,
           tensors.workspace.size(), static_cast<const void*>(tensors.workspace.data()), bytes, alignment);
    }
    return tensors.workspace.first(static_cast<std::size_t>(bytes));
  }

  void check_lse_gradient(const Program& program, const Tensors& tensors) const {
    if (!program.backward || tensors.minus_dlse.data == nullptr) return;
    if (plan->backward_schedule.sends_out) {
      fail(ErrorKind::unsupported, "kernel {} takes no gradient of lse: it computes delta from out and dout itself",
           plan->kernel);
    }
    const TensorView &given = tensors.minus_dlse, &wanted = tensors.lse;
    if (given.shape != wanted.shape || given.dtype != wanted.dtype) {
      fail(ErrorKind::bad_input, "tensor minus_dlse on rank {} is {}; the plan wants {}, as lse", plan->rank,
           describe(given), describe(wanted));
    }
  }

  /// Reads the clock of the last run, once.
  void resolve() {
    if (clock == nullptr) return;
    stats.exposed_seconds = clock->resolve(tracing ? &events : nullptr);
    clock = nullptr;
  }

  std::shared_ptr<const Plan> plan;
  Transport& transport;
  const Kernel* kernel = nullptr;
  ThreadPool threads;
  DeviceMemory memory;  // planned buffers, then the kernel's scratch; none where tensors bring theirs
  StepLists lists;
  std::chrono::steady_clock::time_point epoch;
  std::unique_ptr<StepClock> clock;
  RunStats stats;
  std::vector<TraceEvent> events;
  bool tracing = false;
  bool poison = false;
};

Attention::Attention(std::shared_ptr<const Plan> plan, Transport& transport)
    : impl_(std::make_unique<Impl>(std::move(plan), transport)) {}

Attention::~Attention() = default;

void Attention::forward(const Tensors& tensors, Stream stream) {
  impl_->run(impl_->plan->forward, tensors, stream);
}

void Attention::backward(const Tensors& tensors, Stream stream) {
  if (!impl_->plan->backward) {
    fail(ErrorKind::bad_input, "backward of a plan without gradients; plan the problem with grad=1");
  }
  impl_->run(*impl_->plan->backward, tensors, stream);
}

std::int64_t Attention::workspace_bytes() const {
  return impl_->workspace_bytes();
}

const Plan& Attention::plan() const {
  return *impl_->plan;
}

const RunStats& Attention::stats() const {
  impl_->resolve();
  return impl_->stats;
}

void Attention::set_tracing(bool on) {
  impl_->resolve();
  impl_->tracing = on;
  impl_->events.clear();
}

const std::vector<TraceEvent>& Attention::events() const {
  impl_->resolve();
  return impl_->events;
}

void Attention::set_poison(bool on) {
  impl_->poison = on;
}

}  // namespace rotunda
