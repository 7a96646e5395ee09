// Bandwidth of the operations between attention calls on a CUDA device, beside a device copy of as many bytes, and the
// time of the reference kernel. `elementwise_cuda [MiB] [repetitions] [names…]`: MiB of bf16 a tensor (128: fp32 ones
// have 256); with names, only what begins with one of them.
//
// GB/s count what an operation must read and write once; the ratio is to cudaMemcpyAsync in the same run.
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/cuda/event.hpp"
#include "base/cuda/pack.hpp"
#include "kernel/elementwise/cuda/merge.hpp"
#include "kernel/elementwise/cuda/operations.hpp"
#include "kernel/reference/cuda/cuda_reference_kernel.hpp"
#include "program.hpp"
#include "random_tensor.cuh"

namespace rotunda {
namespace {

using cuda::IndexWidth;

constexpr std::int64_t kHeads = 16, kDim = 128;

/// A tensor of one batch entry.
RandomTensor filled(const Device& device, DType dtype, Layout layout, std::int64_t rows, std::int64_t heads,
                    std::int64_t dim) {
  return {device, dtype, layout, 1, rows, heads, dim};
}

struct Bench {
  Device device = cuda_device(0);
  OwnedStream stream{device};
  int repetitions = 20, together = 8;
  std::vector<std::string_view> names;  ///< none: all
  double copy_rate = 0;

  [[nodiscard]] bool wants(std::string_view name) const {
    return names.empty() ||
           std::any_of(names.begin(), names.end(), [&](std::string_view begin) { return name.starts_with(begin); });
  }

  /// Median seconds of a call, of several back to back: the first of them hides the launches of the others.
  [[nodiscard]] double time(const std::function<void()>& call) const {
    std::vector<double> seconds;
    call();
    for (int i = 0; i < repetitions; ++i) {
      cuda::Event begin(0, cuda::Event::Use::timing), end(0, cuda::Event::Use::timing);
      begin.record(stream.get());
      for (int n = 0; n < together; ++n) call();
      end.record(stream.get());
      seconds.push_back(end.seconds_after(begin) / together);
    }
    std::nth_element(seconds.begin(), seconds.begin() + repetitions / 2, seconds.end());
    return seconds[static_cast<std::size_t>(repetitions / 2)];
  }

  void measure(const std::string& name, std::int64_t bytes, const std::function<void()>& call) {
    if (copy_rate != 0 && !wants(name)) return;
    const double seconds = time(call);
    const double rate = 1e-9 * static_cast<double>(bytes) / seconds;
    if (copy_rate == 0) copy_rate = rate;
    fmt::print("{:<44} {:>9.1f} {:>9.1f} {:>7.2f}\n", name, 1e6 * seconds, rate, rate / copy_rate);
  }
};

void measure_copy(Bench& bench, std::int64_t bytes) {
  const DeviceMemory from(bench.device, bytes), to(bench.device, bytes);
  bench.measure(fmt::format("device copy of {} MiB", bytes >> 20), 2 * bytes,
                [&] { copy_bytes(to.data(), from.data(), bytes, bench.device, bench.stream.get()); });
}

/// Every operation on tensors of `rows` rows, bshd with a layout of its own for `other`.
void measure_flat(Bench& bench, std::int64_t rows, Layout other, IndexWidth width) {
  const auto s = bench.stream.get();
  const std::int64_t n = rows * kHeads * kDim;
  const auto half = filled(bench.device, DType::bf16, Layout::bshd, rows, kHeads, kDim);
  const auto half2 = filled(bench.device, DType::bf16, other, rows, kHeads, kDim);
  const auto full = filled(bench.device, DType::fp32, Layout::bshd, rows, kHeads, kDim);
  const auto full2 = filled(bench.device, DType::fp32, other, rows, kHeads, kDim);
  const auto low = filled(bench.device, DType::fp32, Layout::bshd, rows, kHeads, kDim);
  const std::string tag = std::string(to_string(other)) + (width == IndexWidth::wide ? ", 64-bit" : "");
  bench.measure("fill fp32 " + tag, 4 * n, [&] { cuda::fill(full2.view(), 0.7F, width, s); });
  bench.measure("fill bf16 " + tag, 2 * n, [&] { cuda::fill(half2.view(), 0.7F, width, s); });
  bench.measure("convert fp32 to bf16 " + tag, 6 * n, [&] { cuda::convert(full.view(), half2.view(), width, s); });
  bench.measure("convert bf16 to fp32 " + tag, 6 * n, [&] { cuda::convert(half.view(), full2.view(), width, s); });
  bench.measure("convert bf16 to bf16 " + tag, 4 * n, [&] { cuda::convert(half.view(), half2.view(), width, s); });
  bench.measure("add fp32 " + tag, 12 * n, [&] { cuda::add(full.view(), full2.view(), {}, width, s); });
  bench.measure("add bf16 " + tag, 10 * n, [&] { cuda::add(half.view(), full2.view(), {}, width, s); });
  bench.measure("add fp32, two-sum " + tag, 20 * n,
                [&] { cuda::add(full.view(), full2.view(), low.view(), width, s); });
}

void measure_row_dot(Bench& bench, std::int64_t rows, Layout layout, IndexWidth width) {
  const std::int64_t pairs = rows * kHeads, n = pairs * kDim;
  const auto out = filled(bench.device, DType::bf16, layout, rows, kHeads, kDim);
  const auto dout = filled(bench.device, DType::bf16, layout, rows, kHeads, kDim);
  const auto delta = filled(bench.device, DType::fp32, Layout::bhsd, rows, kHeads, 1);
  const std::string tag = std::string(to_string(layout)) + (width == IndexWidth::wide ? ", 64-bit" : "");
  bench.measure("row_dot bf16 " + tag, 4 * n + 4 * pairs,
                [&] { cuda::row_dot(out.view(), dout.view(), delta.view(), width, bench.stream.get()); });
}

/// With tensors of as many elements whatever the dim.
void measure_rows(Bench& bench, std::int64_t elements, Layout layout, DType dtype, std::int64_t dim) {
  const auto s = bench.stream.get();
  const std::int64_t rows = elements / (kHeads * dim), pairs = rows * kHeads, n = pairs * dim;
  const auto partial = filled(bench.device, dtype, layout, rows, kHeads, dim);
  const auto out = filled(bench.device, DType::bf16, layout, rows, kHeads, dim);
  const auto acc = filled(bench.device, DType::fp32, layout, rows, kHeads, dim);
  const auto lse = filled(bench.device, DType::fp32, Layout::bhsd, rows, kHeads, 1);
  const auto partial_lse = filled(bench.device, DType::fp32, Layout::bhsd, rows, kHeads, 1);
  const auto low = filled(bench.device, DType::fp32, Layout::bhsd, rows, kHeads, 1);
  const auto sink = filled(bench.device, DType::fp32, Layout::bshd, 1, kHeads, 1);
  const std::vector<RowSpan> span = {{0, 0, rows}};
  const DeviceMemory list(bench.device, sizeof(RowSpan));
  copy_bytes(list.data(), span.data(), sizeof(RowSpan), bench.device, s);
  const RowList all{span, reinterpret_cast<const RowSpan*>(list.data())};
  const RowState state{acc.view(), lse.view(), low.view()};
  const std::string tag = fmt::format("{}, d {}", to_string(layout), dim);
  const std::int64_t size = static_cast<std::int64_t>(size_of(dtype));
  const auto merge = [&](const char* which, std::int64_t bytes, std::int64_t statistics, bool init, bool last) {
    bench.measure(fmt::format("merge {}, {} {}", to_string(dtype), which, tag), bytes * n + statistics * pairs, [&] {
      cuda::merge({partial.view(), partial_lse.view()}, state, out.view(), {init, last}, bench.device, s);
    });
  };
  merge("first", size + 4, 12, true, false);
  merge("middle", size + 8, 20, false, false);
  merge("last", size + 6, 16, false, true);
  if (dtype == DType::fp32) return;
  bench.measure("finish_with_sink to bf16 " + tag, 6 * n + 12 * pairs,
                [&] { cuda::finish_with_sink(state, out.view(), sink.view(), all, s); });
}

/// One number a row and head: as many rows as fill `bytes` with an LSE.
void measure_statistics(Bench& bench, std::int64_t bytes) {
  const auto s = bench.stream.get();
  const std::int64_t pairs = bytes / 4, rows = pairs / kHeads;
  const auto lse = filled(bench.device, DType::fp32, Layout::bhsd, rows, kHeads, 1);
  const auto delta = filled(bench.device, DType::fp32, Layout::bhsd, rows, kHeads, 1);
  const auto sink = filled(bench.device, DType::fp32, Layout::bshd, 1, kHeads, 1);
  const auto dsink = filled(bench.device, DType::fp32, Layout::bshd, 1, kHeads, 1);
  const std::vector<RowSpan> span = {{0, 0, rows}};
  const DeviceMemory list(bench.device, sizeof(RowSpan));
  copy_bytes(list.data(), span.data(), sizeof(RowSpan), bench.device, s);
  const RowList all{span, reinterpret_cast<const RowSpan*>(list.data())};
  bench.measure("sink_gradient", 8 * pairs,
                [&] { cuda::sink_gradient(lse.view(), delta.view(), sink.view(), all, dsink.view(), s); });
  bench.measure("fill_sink", 4 * pairs, [&] { cuda::fill_sink(lse.view(), sink.view(), all, s); });
}

/// Q, K, V, O, an LSE: what an all-to-all carries.
void measure_pack(Bench& bench, std::int64_t rows, IndexWidth width) {
  const auto s = bench.stream.get();
  std::vector<RandomTensor> tensors;
  std::vector<cuda::Move> moves;
  std::int64_t bytes = 0;
  for (const Layout layout : {Layout::bshd, Layout::bhsd, Layout::sbhd, Layout::bshd}) {
    tensors.emplace_back(bench.device, DType::bf16, layout, 1, rows / 2, kHeads, kDim);
    // Half of the heads: strided on one side, dense on the other.
    moves.push_back({tensors.back().view().narrow_heads(kHeads / 2, kHeads / 2), bytes});
    bytes += moves.back().view.elements() * 2;
  }
  tensors.emplace_back(bench.device, DType::fp32, Layout::bhsd, 1, rows / 2, kHeads, 1);
  moves.push_back({tensors.back().view(), bytes});
  bytes += moves.back().view.elements() * 4;
  const DeviceMemory buffer(bench.device, bytes);
  const std::string tag = width == IndexWidth::wide ? ", 64-bit" : "";
  bench.measure("pack q, k, v, o, lse" + tag, 2 * bytes,
                [&] { cuda::pack(moves, buffer.data(), bench.device, s, width); });
  bench.measure("unpack q, k, v, o, lse" + tag, 2 * bytes,
                [&] { cuda::unpack(buffer.data(), moves, bench.device, s, width); });
}

/// The reference kernel: seconds and the TFLOP/s of causal attention (2.5 times the forward's in backward).
void measure_reference(Bench& bench, std::int64_t rows, std::int64_t dim) {
  const auto tensor = [&](DType dtype, std::int64_t d) {
    return filled(bench.device, dtype, Layout::bshd, rows, kHeads, d);
  };
  const auto q = tensor(DType::bf16, dim), k = tensor(DType::bf16, dim), v = tensor(DType::bf16, dim);
  const auto out = tensor(DType::bf16, dim), dout = tensor(DType::bf16, dim);
  const auto lse = tensor(DType::fp32, 1), delta = tensor(DType::fp32, 1);
  const auto dq = tensor(DType::fp32, dim), dk = tensor(DType::fp32, dim), dv = tensor(DType::fp32, dim);
  const std::vector<Slice> slices = {{0, 0, rows, 0, rows, 0, 0, kInfinity, 0}};
  const DeviceMemory list(bench.device, sizeof(Slice));
  copy_bytes(list.data(), slices.data(), sizeof(Slice), bench.device, {});
  synchronize(bench.device, {});
  ThreadPool threads(1);
  const KernelContext context{threads, {}, bench.device, bench.stream.get()};
  const auto* device_slices = reinterpret_cast<const Slice*>(list.data());
  const double flops = 2.0 * static_cast<double>(rows) * static_cast<double>(rows) * kHeads * static_cast<double>(dim);
  bench.repetitions = bench.together = 1;
  ForwardArgs forward_args;
  forward_args.slices = slices;
  forward_args.q = q.view();
  forward_args.k = k.view();
  forward_args.v = v.view();
  forward_args.lse = lse.view();
  forward_args.out = out.view();
  forward_args.scale = 0.05;
  forward_args.device_slices = device_slices;
  const double forward = bench.time([&] { cuda_reference_kernel().forward(forward_args, context); });
  BackwardArgs backward_args;
  backward_args.slices = slices;
  backward_args.q = q.view();
  backward_args.k = k.view();
  backward_args.v = v.view();
  backward_args.dout = dout.view();
  backward_args.lse = lse.view();
  backward_args.delta = delta.view();
  backward_args.dq = dq.view();
  backward_args.dk = dk.view();
  backward_args.dv = dv.view();
  backward_args.scale = 0.05;
  backward_args.device_slices = device_slices;
  const double backward = bench.time([&] { cuda_reference_kernel().backward(backward_args, context); });
  fmt::print("reference, {} rows, d {}: forward {:.3f} s, {:.1f} TFLOP/s; backward {:.3f} s, {:.1f} TFLOP/s\n", rows,
             dim, forward, 1e-12 * flops / forward, backward, 2.5e-12 * flops / backward);
}

int run(int argc, char** argv) {
  const std::int64_t mib = argc > 1 ? std::max(1L, std::atol(argv[1])) : 128;
  Bench bench;
  if (argc > 2) bench.repetitions = std::max(1, std::atoi(argv[2]));
  for (int i = 3; i < argc; ++i) bench.names.emplace_back(argv[i]);
  const std::int64_t rows = (mib << 20) / (2 * kHeads * kDim);
  fmt::print("{}; {} rows, {} heads, dim {}\n", describe(bench.device), rows, kHeads, kDim);
  fmt::print("{:<44} {:>9} {:>9} {:>7}\n", "operation", "us", "GB/s", "to copy");
  measure_copy(bench, mib << 21);
  for (const Layout layout : {Layout::bshd, Layout::bhsd}) {
    measure_flat(bench, rows, layout, IndexWidth::automatic);
    measure_row_dot(bench, rows, layout, IndexWidth::automatic);
    for (const std::int64_t dim : {128, 40, 512}) measure_rows(bench, rows * kHeads * kDim, layout, DType::bf16, dim);
    measure_rows(bench, rows * kHeads * kDim, layout, DType::fp32, kDim);
  }
  measure_statistics(bench, mib << 20);
  measure_flat(bench, rows, Layout::bhsd, IndexWidth::wide);
  measure_row_dot(bench, rows, Layout::bshd, IndexWidth::wide);
  measure_pack(bench, rows, IndexWidth::automatic);
  measure_pack(bench, rows, IndexWidth::wide);
  for (const std::int64_t dim : {128, 512}) {
    if (bench.wants("reference")) measure_reference(bench, 8192, dim);
  }
  return 0;
}

}  // namespace
}  // namespace rotunda

int main(int argc, char** argv) {
  return rotunda::run_program("elementwise_cuda", argc, argv, rotunda::run);
}
