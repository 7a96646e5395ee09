// Times the cpu kernel alone: causal attention over one whole sequence. Arguments: sequence length, heads, head dim,
// element (0 fp32, 1 bf16), threads. `flops` counts visible pairs only, 2·(d + d_v) each forward, 2.5 times that
// backward.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "base/half.hpp"
#include "base/memory.hpp"
#include "kernel/cpu/cpu_kernel.hpp"

namespace rotunda {
namespace {

/// Dense [1, s, h, d] with its memory.
struct Buffer {
  HostBuffer memory;
  TensorView view;

  Buffer(DType dtype, std::int64_t s, std::int64_t h, std::int64_t d)
      : memory(s * h * d * static_cast<std::int64_t>(size_of(dtype))),
        view(make_view(memory.data(), dtype, Layout::bhsd, 1, s, h, d)) {
    std::memset(memory.data(), 0, static_cast<std::size_t>(memory.bytes()));
  }

  void randomize(std::mt19937& rng) {
    std::normal_distribution<float> normal;
    dispatch_dtype(view.dtype, [&](auto e) {
      using T = decltype(e);
      for (std::int64_t i = 0; i < view.elements(); ++i) static_cast<T*>(view.data)[i] = T(normal(rng));
    });
  }
};

struct Setting {
  std::int64_t s, h;
  int d;
  DType dtype;
  int threads;

  explicit Setting(const benchmark::State& state)
      : s(state.range(0)),
        h(state.range(1)),
        d(static_cast<int>(state.range(2))),
        dtype(state.range(3) == 0 ? DType::fp32 : DType::bf16),
        threads(static_cast<int>(state.range(4))) {}

  [[nodiscard]] double forward_flops() const {
    return 4.0 * d * static_cast<double>(h) * static_cast<double>(s) * static_cast<double>(s + 1) / 2;
  }
};

class Attention {
 public:
  explicit Attention(const Setting& x)
      : x_(x),
        pool_(x.threads),
        q_(x.dtype, x.s, x.h, x.d),
        k_(x.dtype, x.s, x.h, x.d),
        v_(x.dtype, x.s, x.h, x.d),
        dout_(x.dtype, x.s, x.h, x.d),
        out_(x.dtype, x.s, x.h, x.d),
        lse_(DType::fp32, x.s, x.h, 1),
        delta_(DType::fp32, x.s, x.h, 1),
        dq_(DType::fp32, x.s, x.h, x.d),
        dk_(DType::fp32, x.s, x.h, x.d),
        dv_(DType::fp32, x.s, x.h, x.d),
        slices_{{0, 0, x.s, 0, x.s, 0, 0, kInfinity, 0}} {
    std::mt19937 rng(1);
    for (Buffer* b : {&q_, &k_, &v_, &dout_}) b->randomize(rng);
    Problem problem;
    problem.dtype = x.dtype;
    problem.d = problem.d_v = x.d;
    const auto scratch = [&](bool back) {
      return cpu_kernel().workspace_bytes(problem, {.backward = back, .slices = slices_, .threads = x.threads});
    };
    workspace_ = HostBuffer(std::max(scratch(false), scratch(true)));
  }

  void forward() {
    ForwardArgs args{slices_, q_.view, k_.view, v_.view, {}, lse_.view, out_.view, nullptr, {}, scale(), true, true};
    cpu_kernel().forward(args, context());
  }
  void backward() {
    BackwardArgs args{slices_,  q_.view,  k_.view,  v_.view, dout_.view, lse_.view, delta_.view,
                      dq_.view, dk_.view, dv_.view, {},      scale(),    true,      true};
    cpu_kernel().backward(args, context());
  }

 private:
  [[nodiscard]] double scale() const { return 1 / std::sqrt(x_.d); }
  KernelContext context() { return {pool_, {workspace_.data(), static_cast<std::size_t>(workspace_.bytes())}}; }

  Setting x_;
  ThreadPool pool_;
  Buffer q_, k_, v_, dout_, out_, lse_, delta_, dq_, dk_, dv_;
  std::vector<Slice> slices_;
  HostBuffer workspace_;
};

void count_flops(benchmark::State& state, double flops) {
  state.counters["flops"] = benchmark::Counter(flops, benchmark::Counter::kIsIterationInvariantRate);
}

void forward(benchmark::State& state) {
  const Setting setting(state);
  Attention attention(setting);
  for ([[maybe_unused]] auto _ : state) attention.forward();
  count_flops(state, setting.forward_flops());
}

void backward(benchmark::State& state) {
  const Setting setting(state);
  Attention attention(setting);
  attention.forward();
  for ([[maybe_unused]] auto _ : state) attention.backward();
  count_flops(state, 2.5 * setting.forward_flops());
}

void settings(benchmark::internal::Benchmark* bench) {
  bench->ArgNames({"s", "h", "d", "bf16", "threads"})
      ->MeasureProcessCPUTime()
      ->UseRealTime()
      ->Unit(benchmark::kMillisecond);
  for (const int dtype : {0, 1}) {
    for (const int d : {64, 128}) {
      bench->Args({2048, 8, d, dtype, 2});
      bench->Args({8192, 4, d, dtype, 2});
    }
  }
}

BENCHMARK(forward)->Apply(settings);
BENCHMARK(backward)->Apply(settings);

}  // namespace
}  // namespace rotunda

BENCHMARK_MAIN();
