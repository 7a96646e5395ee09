// Throughput of one CUDA kernel, without ranks and without the executor: `attention_cuda KERNEL [PROBLEM]…`.
//
// For each problem: forward in one call, and as a step of a ring (fp32 state read and written); with grad=1 backward
// too. Calls follow each other for 0.12 s (a GPU at its power limit is slower than one that was idle) and for 0.01 s
// after a pause; TFLOP/s count 2·h_q·(d + d_v) per visible pair forward, 2.5 times that backward.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/cuda/event.hpp"
#include "kernel/kernel.hpp"
#include "program.hpp"
#include "random_tensor.cuh"

namespace rotunda {
namespace {

using Tensor = RandomTensor;

/// The tensors and calls of a problem.
class Run {
 public:
  Run(const Kernel& kernel, const Problem& problem)
      : kernel_(kernel),
        problem_(problem),
        slices_(mask_slices(problem)),
        list_(device_, static_cast<std::int64_t>(std::max<std::size_t>(1, slices_.size()) * sizeof(Slice))),
        q_(tensor_q(problem.dtype, problem.d)),
        k_(tensor_k(problem.dtype, problem.d)),
        v_(tensor_k(problem.dtype, problem.d_v)),
        out_(tensor_q(problem.dtype, problem.d_v)),
        acc_(tensor_q(DType::fp32, problem.d_v)),
        lse_(tensor_q(DType::fp32, 1)),
        low_(tensor_q(DType::fp32, 1)),
        workspace_(device_, std::max<std::int64_t>(1, kernel.workspace_bytes(problem, call(false)))) {
    copy_bytes(list_.data(), slices_.data(), static_cast<std::int64_t>(slices_.size() * sizeof(Slice)), device_, {});
    synchronize(device_, {});
  }

  void forward(bool init, bool last) {
    kernel_.forward({.slices = slices_,
                     .q = q_.view(),
                     .k = k_.view(),
                     .v = v_.view(),
                     .acc = acc_.view(),
                     .lse = lse_.view(),
                     .out = out_.view(),
                     .heads = {.group = problem_.h_q / problem_.h_kv},
                     .scale = problem_.scale,
                     .init = init,
                     .last = last,
                     .lse_low = low_.view(),
                     .device_slices = reinterpret_cast<const Slice*>(list_.data())},
                    context(workspace_));
  }

  /// Needs a forward before it.
  void backward() {
    if (!gradients_) gradients_ = std::make_unique<Gradients>(*this);
    Gradients& g = *gradients_;
    kernel_.backward({.slices = slices_,
                      .q = q_.view(),
                      .k = k_.view(),
                      .v = v_.view(),
                      .dout = g.dout.view(),
                      .lse = lse_.view(),
                      .delta = g.delta.view(),
                      .dq = g.dq.view(),
                      .dk = g.dk.view(),
                      .dv = g.dv.view(),
                      .heads = {.group = problem_.h_q / problem_.h_kv},
                      .scale = problem_.scale,
                      .device_slices = reinterpret_cast<const Slice*>(list_.data()),
                      .out = out_.view()},
                     context(g.workspace));
  }

  /// Seconds of a call in a window of calls of about that length.
  [[nodiscard]] double time(double window, const std::function<void()>& call) {
    call();
    synchronize(device_, stream_.get());
    const double once = measure(1, call);
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    const int calls = std::max(1, static_cast<int>(window / once));
    return measure(calls, call) / calls;
  }

  void report(const char* what, double flops, const std::function<void()>& call) {
    const double sustained = time(0.12, call), rested = time(0.01, call);
    fmt::print("  {:<10} {:8.3f} ms {:6.1f} TFLOP/s sustained   {:8.3f} ms {:6.1f} TFLOP/s after a pause\n", what,
               1e3 * sustained, 1e-12 * flops / sustained, 1e3 * rested, 1e-12 * flops / rested);
    std::fflush(stdout);
  }
  void report() {
    const double flops = 2.0 * problem_.h_q * (problem_.d + problem_.d_v) * count_pairs(slices_);
    fmt::print("{}\n", to_text(problem_));
    report("forward", flops, [&] { forward(true, true); });
    if (kernel_.capabilities().accumulates) report("ring step", flops, [&] { forward(false, false); });
    if (!problem_.grad) return;
    forward(true, true);
    report("backward", 2.5 * flops, [&] { backward(); });
  }

 private:
  struct Gradients {
    explicit Gradients(const Run& run)
        : dout(run.tensor_q(run.problem_.dtype, run.problem_.d_v)),
          delta(run.tensor_q(DType::fp32, 1)),
          dq(run.tensor_q(DType::fp32, run.problem_.d)),
          dk(run.tensor_k(DType::fp32, run.problem_.d)),
          dv(run.tensor_k(DType::fp32, run.problem_.d_v)),
          workspace(run.device_, std::max<std::int64_t>(1, run.kernel_.workspace_bytes(run.problem_, run.call(true)))) {
    }
    Tensor dout, delta, dq, dk, dv;
    DeviceMemory workspace;
  };

  [[nodiscard]] Tensor tensor_q(DType dtype, std::int64_t dim) const {
    return {device_, dtype, problem_.layout, problem_.batches(), problem_.s_q, problem_.h_q, dim};
  }
  [[nodiscard]] Tensor tensor_k(DType dtype, std::int64_t dim) const {
    return {device_, dtype, problem_.layout, problem_.batches(), problem_.s_k, problem_.h_kv, dim};
  }
  [[nodiscard]] CallShape call(bool backward) const {
    CallShape shape = whole_call(problem_, slices_, backward);
    shape.device = device_;
    return shape;
  }
  [[nodiscard]] KernelContext context(const DeviceMemory& workspace) {
    return {threads_, {workspace.data(), static_cast<std::size_t>(workspace.bytes())}, device_, stream_.get()};
  }
  [[nodiscard]] double measure(int calls, const std::function<void()>& call) const {
    cuda::Event begin(0, cuda::Event::Use::timing), end(0, cuda::Event::Use::timing);
    begin.record(stream_.get());
    for (int i = 0; i < calls; ++i) call();
    end.record(stream_.get());
    return end.seconds_after(begin);
  }

  const Kernel& kernel_;
  Problem problem_;
  std::vector<Slice> slices_;
  Device device_ = cuda_device(0);
  OwnedStream stream_{device_};
  ThreadPool threads_{1};
  DeviceMemory list_;
  Tensor q_, k_, v_, out_, acc_, lse_, low_;
  DeviceMemory workspace_;
  std::unique_ptr<Gradients> gradients_;
};

int run(int argc, char** argv) {
  const Kernel* kernel = argc > 1 ? find_kernel(argv[1], Device::Kind::cuda) : nullptr;
  if (kernel == nullptr) {
    fmt::print(stderr, "attention_cuda KERNEL [PROBLEM]…: no CUDA kernel is called '{}'\n", argc > 1 ? argv[1] : "");
    return 2;
  }
  fmt::print("{}, {}\n", describe(cuda_device(0)), kernel->name());
  for (int i = 2; i < argc; ++i) {
    const Problem problem = parse_problem(argv[i]);
    if (const auto reason = kernel->refuse(problem, cuda_device(0))) {
      fmt::print("{}\n  {}\n", argv[i], *reason);
      continue;
    }
    Run(*kernel, problem).report();
  }
  return 0;
}

}  // namespace
}  // namespace rotunda

int main(int argc, char** argv) {
  return rotunda::run_program("attention_cuda", argc, argv, rotunda::run);
}
