// Throughput of one CUDA kernel, without ranks and without the executor: `attention_cuda KERNEL [PROBLEM]…`.
//
// For each problem: forward in one call, and as a step of a ring (fp32 state read and written); with grad=1 backward
// too. Calls follow each other for 0.12 s (a GPU at its power limit is slower than one that was idle) and for 0.01 s
// after a pause; TFLOP/s count 2·h_q·(d + d_v) per visible pair forward, 2.5 times that backward.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/cuda/check.hpp"
#include "base/cuda/event.hpp"
#include "kernel/kernel.hpp"

namespace rotunda {
namespace {

constexpr int kThreads = 256;

__device__ std::uint64_t mix(std::uint64_t z) {
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9U;
  z = (z ^ z >> 27) * 0x94d049bb133111ebU;
  return z ^ z >> 31;
}

/// Nearly normal numbers: sums of eight bytes.
template <class T>
__global__ void fill_normal(T* to, std::int64_t count, std::uint64_t seed) {
  const std::int64_t n = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (n >= count) return;
  std::uint64_t bits = mix(static_cast<std::uint64_t>(n) * 0x9e3779b97f4a7c15U + seed);
  int sum = 0;
  for (; bits != 0; bits >>= 8) sum += static_cast<int>(bits & 0xff);
  to[n] = T(static_cast<float>(sum - 1020) / 209.0F);
}

/// A tensor of a problem with random contents.
class Tensor {
 public:
  Tensor(DType dtype, Layout layout, std::int64_t b, std::int64_t s, std::int64_t h, std::int64_t d)
      : memory_(cuda_device(0), std::max<std::int64_t>(1, b * s * h * d * static_cast<std::int64_t>(size_of(dtype)))),
        view_(make_view(memory_.data(), dtype, layout, b, s, h, d)) {
    static std::uint64_t seed = 1;
    seed = seed * 6364136223846793005U + 1;
    const std::int64_t count = view_.elements();
    const auto blocks = static_cast<unsigned>((count + kThreads - 1) / kThreads);
    if (dtype == DType::bf16) {
      fill_normal<<<blocks, kThreads>>>(reinterpret_cast<__nv_bfloat16*>(memory_.data()), count, seed);
    } else if (dtype == DType::fp16) {
      fill_normal<<<blocks, kThreads>>>(reinterpret_cast<__half*>(memory_.data()), count, seed);
    } else {
      fill_normal<<<blocks, kThreads>>>(reinterpret_cast<float*>(memory_.data()), count, seed);
    }
    cuda::check_launch("fill_normal");
    synchronize(cuda_device(0), {});
  }
  [[nodiscard]] const TensorView& view() const { return view_; }

 private:
  DeviceMemory memory_;
  TensorView view_;
};

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
    return {dtype, problem_.layout, problem_.batches(), problem_.s_q, problem_.h_q, dim};
  }
  [[nodiscard]] Tensor tensor_k(DType dtype, std::int64_t dim) const {
    return {dtype, problem_.layout, problem_.batches(), problem_.s_k, problem_.h_kv, dim};
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

}  // namespace

int run(int argc, char** argv) {
  if (cuda_device_count() == 0) {
    fmt::print("{}\n", why_no_cuda());
    return 1;
  }
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

}  // namespace rotunda

int main(int argc, char** argv) {
  try {
    return rotunda::run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "attention_cuda: %s\n", error.what());
    return 1;
  }
}
