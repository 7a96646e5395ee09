// Runs a kernel on a whole problem, in one call or several, the way an executor would: poisoned memory, exact
// workspace.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "device_call.hpp"
#include "kernel/kernel.hpp"
#include "rotunda/oracle.hpp"
#include "support/random_tensors.hpp"

namespace rotunda::testing {

/// One kernel call: slices over all query rows and over key rows [k_begin, k_begin + k_rows), counted from k_begin.
struct Call {
  std::vector<Slice> slices;
  std::int64_t k_begin = 0, k_rows = 0;
};

/// The part of a slice in key rows [begin, end), or one without keys.
[[nodiscard]] inline Slice cut_slice_keys(Slice slice, std::int64_t begin, std::int64_t end) {
  const std::int64_t from = std::max(slice.k_begin, begin);
  const std::int64_t to = std::min(slice.k_begin + slice.k_len, end);
  slice.k_pos += from - slice.k_begin;
  slice.k_begin = from - begin;
  slice.k_len = std::max<std::int64_t>(0, to - from);
  return slice;
}

/// The same visible pairs in `pieces` calls, each with its part of the keys as a buffer of its own.
[[nodiscard]] inline std::vector<Call> cut_keys(const Problem& problem, const std::vector<Slice>& slices, int pieces) {
  std::vector<Call> calls;
  for (int i = 0; i < pieces; ++i) {
    const std::int64_t begin = problem.s_k * i / pieces;
    const std::int64_t end = problem.s_k * (i + 1) / pieces;
    Call call{{}, begin, end - begin};
    for (const Slice& slice : slices) {
      const Slice part = cut_slice_keys(slice, begin, end);
      if (part.k_len > 0) call.slices.push_back(part);
    }
    calls.push_back(std::move(call));
  }
  return calls;
}

/// The same visible pairs with every slice cut after each `step` query rows.
[[nodiscard]] inline std::vector<Slice> cut_rows(const std::vector<Slice>& slices, std::int64_t step) {
  std::vector<Slice> parts;
  for (const Slice& slice : slices) {
    for (std::int64_t i = 0; i < slice.q_len; i += step) {
      Slice part = slice;
      part.q_begin += i;
      part.q_pos += i;
      part.q_len = std::min(step, slice.q_len - i);
      parts.push_back(part);
    }
  }
  return parts;
}

/// Whether a kernel takes a problem in one call. Kernels of CUDA devices may refuse what they can't do, and such a case
/// is left out; those of the CPU may refuse nothing.
[[nodiscard]] inline bool serves(const Kernel& kernel, const Problem& problem) {
  const Device device = kernel.capabilities().device == Device::Kind::cuda ? cuda_device(0) : Device{};
  std::optional<std::string> reason = kernel.refuse(problem, device);
  const std::vector<Slice> slices = mask_slices(problem);
  for (const bool backward : {false, true}) {
    CallShape call = whole_call(problem, slices, backward);
    call.device = device;
    if (!reason && (problem.grad || !backward)) reason = kernel.refuse_call(problem, call);
  }
  EXPECT_TRUE(!reason || device.is_cuda()) << *reason;
  return !reason;
}

/// The problem as near as a kernel serves it: those of CUDA devices may take 16 bits and multiples of 8 alone.
[[nodiscard]] inline Problem nearest_served(const Kernel& kernel, Problem problem) {
  if (kernel.capabilities().device != Device::Kind::cuda || serves(kernel, problem)) return problem;
  Problem near = problem;
  if (near.dtype == DType::fp32) near.dtype = DType::bf16;
  if (serves(kernel, near)) return near;
  const auto step = [](int dim) { return (dim + 7) / 8 * 8; };
  near.d = step(near.d);
  near.d_v = step(near.d_v);
  return serves(kernel, near) ? near : problem;
}

/// Owns the tensors of a problem (no sink) and runs one kernel on them. Gradients are the kernel's own fp32.
class KernelDriver {
 public:
  KernelDriver(const Kernel& kernel, const Problem& problem, const TensorOptions& options = {}, int threads = 2)
      : kernel_(kernel), problem_(problem), tensors_(problem, options), threads_(threads) {
    const Problem& p = problem_;
    acc_ = tensors_.allocate(DType::fp32, p.layout, p.batches(), p.s_q, p.h_q, p.d_v);
    delta_ = tensors_.allocate(DType::fp32, p.layout, p.batches(), p.s_q, p.h_q, 1);
    whole_acc_ = acc_;
    whole_delta_ = delta_;
    heads.group = p.h_q / p.h_kv;
    if (!p.grad) return;
    tensors_.views().dq = tensors_.allocate(DType::fp32, p.layout, p.batches(), p.s_q, p.h_q, p.d);
    tensors_.views().dk = tensors_.allocate(DType::fp32, p.layout, p.batches(), p.s_k, p.h_kv, p.d);
    tensors_.views().dv = tensors_.allocate(DType::fp32, p.layout, p.batches(), p.s_k, p.h_kv, p.d_v);
  }

  [[nodiscard]] const Problem& problem() const { return problem_; }
  [[nodiscard]] const Kernel& kernel() const { return kernel_; }
  [[nodiscard]] Tensors& tensors() { return tensors_.views(); }
  [[nodiscard]] const Tensors& tensors() const { return tensors_.views(); }
  [[nodiscard]] Call whole() const { return {mask_slices(problem_), 0, problem_.s_k}; }

  /// Forward, `init` with the first call and `last` with the last; then backward where the problem has grad.
  void run(const std::vector<Call>& calls) {
    forward(calls);
    if (problem_.grad) backward(calls);
  }
  void run() { run({whole()}); }

  void forward(const std::vector<Call>& calls) {
    tensors_.poison_outputs();
    fill(acc_, kNaN);
    if (problem_.max_logit) fill(tensors().max_logit, -HUGE_VAL);
    for (std::size_t i = 0; i < calls.size(); ++i) {
      const bool one_call = calls.size() == 1;
      forward_call(calls[i], i == 0, i + 1 == calls.size(), one_call ? TensorView{} : acc_);
    }
  }

  void forward_call(const Call& call, bool init, bool last, const TensorView& acc) {
    const Tensors& t = tensors();
    ForwardArgs args{.slices = call.slices,
                     .q = t.q,
                     .k = t.k.narrow_rows(call.k_begin, call.k_rows),
                     .v = t.v.narrow_rows(call.k_begin, call.k_rows),
                     .acc = acc,
                     .lse = t.lse,
                     .out = last ? t.out : TensorView{},
                     .max_logit = static_cast<float*>(t.max_logit.data),
                     .heads = heads,
                     .scale = problem_.scale,
                     .init = init,
                     .last = last};
    if (run_on_device(args)) return;
    with_context(false, [&](const KernelContext& context) { kernel_.forward(args, context); });
  }

  /// Every call has key rows of its own; dq is initialised by the first.
  void backward(const std::vector<Call>& calls) {
    fill(tensors().dq, kNaN);
    fill(tensors().dk, kNaN);
    fill(tensors().dv, kNaN);
    compute_delta();
    for (std::size_t i = 0; i < calls.size(); ++i) backward_call(calls[i], i == 0, true);
  }

  void backward_call(const Call& call, bool init_dq, bool init_dkv) {
    const Tensors& t = tensors();
    BackwardArgs args{.slices = call.slices,
                      .q = t.q,
                      .k = t.k.narrow_rows(call.k_begin, call.k_rows),
                      .v = t.v.narrow_rows(call.k_begin, call.k_rows),
                      .dout = t.dout,
                      .lse = t.lse,
                      .delta = delta_,
                      .dq = t.dq,
                      .dk = t.dk.narrow_rows(call.k_begin, call.k_rows),
                      .dv = t.dv.narrow_rows(call.k_begin, call.k_rows),
                      .heads = heads,
                      .scale = problem_.scale,
                      .init_dq = init_dq,
                      .init_dkv = init_dkv,
                      .deterministic = problem_.deterministic,
                      .out = t.out};
    if (run_on_device(args)) return;
    with_context(true, [&](const KernelContext& context) { kernel_.backward(args, context); });
  }

  /// From now on only query heads [q_first, q_first + q_count) and their KV heads exist.
  void restrict_heads(int q_first, int q_count) {
    const int kv_first = q_first / heads.group;
    const int kv_count = (q_first + q_count - 1) / heads.group - kv_first + 1;
    Tensors& t = tensors();
    for (TensorView* view : {&t.q, &t.out, &t.lse, &t.dout, &t.dq, &acc_, &delta_}) {
      if (view->data != nullptr) *view = view->narrow_heads(q_first, q_count);
    }
    for (TensorView* view : {&t.k, &t.v, &t.dk, &t.dv}) {
      if (view->data != nullptr) *view = view->narrow_heads(kv_first, kv_count);
    }
    heads.q_first = q_first;
    heads.kv_first = kv_first;
  }

  /// Goes back to these views and heads after restrict_heads (delta included).
  void use(const Tensors& views, const HeadMap& map) {
    tensors() = views;
    heads = map;
    acc_ = whole_acc_;
    delta_ = whole_delta_;
  }

  HeadMap heads;

 private:
  /// rowsum(dout ∘ out); NaN in padding rows, as dout has it there.
  void compute_delta() {
    const Tensors& t = tensors();
    for_each_element(delta_, [&](auto b, auto row, auto head, auto) {
      double sum = 0;
      for (std::int64_t i = 0; i < t.out.dim(); ++i)
        sum += read(t.dout, b, row, head, i) * read(t.out, b, row, head, i);
      write(delta_, b, row, head, 0, sum);
    });
  }

  /// The call of a kernel that runs on a CUDA device; false for others.
  template <class Args>
  [[nodiscard]] bool run_on_device(const Args& args) const {
    if (kernel_.capabilities().device != Device::Kind::cuda) return false;
    ThreadPool pool(threads_);
    DeviceCall(cuda_device(0)).run(kernel_, problem_, args, pool);
    return true;
  }

  template <class Body>
  void with_context(bool is_backward, Body&& body) {
    const HostBuffer workspace(kernel_.workspace_bytes(problem_, whole_call(problem_, {}, is_backward, threads_)));
    if (workspace.bytes() > 0) std::memset(workspace.data(), 0xff, static_cast<std::size_t>(workspace.bytes()));
    ThreadPool pool(threads_);
    body(KernelContext{pool, {workspace.data(), static_cast<std::size_t>(workspace.bytes())}});
  }

  const Kernel& kernel_;
  Problem problem_;
  ProblemTensors tensors_;
  int threads_;
  TensorView acc_, delta_;  ///< narrowed with the heads
  TensorView whole_acc_, whole_delta_;
};

/// Every tensor is within the bar of float64. Where heads share keys, a kernel of 16-bit partial results rounds each of
/// them before the sum: one rounding more than naive has, and the bar says so (docs/accuracy.md).
inline void expect_right(const KernelDriver& driver, const OracleResult& want) {
  const bool partials = !driver.kernel().capabilities().accumulates && driver.problem().h_q > driver.problem().h_kv;
  for (Grade one : grade(driver.problem(), want, driver.tensors())) {
    if (partials && (one.tensor == "dk" || one.tensor == "dv")) one.bar = 3;
    EXPECT_TRUE(one.passed()) << one.tensor << ": ratio " << one.ratio << " (at most " << one.bar << "), error "
                              << one.error << ", naive error " << one.naive_error << ", misplaced " << one.misplaced;
  }
}

inline void expect_right(const KernelDriver& driver) {
  expect_right(driver, oracle(driver.problem(), driver.tensors(), 1));
}

/// Largest difference between two views; NaN equals NaN and an infinity itself.
[[nodiscard]] inline double largest_difference(const TensorView& a, const TensorView& b) {
  double most = 0;
  for_each_element(a, [&](auto batch, auto row, auto head, auto dim) {
    const double x = read(a, batch, row, head, dim);
    const double y = read(b, batch, row, head, dim);
    if (x == y || (std::isnan(x) && std::isnan(y))) return;
    const double difference = std::abs(x - y);
    most = std::isnan(difference) ? HUGE_VAL : std::max(most, difference);
  });
  return most;
}

/// Two runs of one problem differ by at most `tolerance` in every output.
inline void expect_close(const KernelDriver& a, const KernelDriver& b, double tolerance) {
  using Field = TensorView Tensors::*;
  const std::pair<const char*, Field> outputs[] = {
      {"out", &Tensors::out}, {"lse", &Tensors::lse}, {"max_logit", &Tensors::max_logit},
      {"dq", &Tensors::dq},   {"dk", &Tensors::dk},   {"dv", &Tensors::dv}};
  for (const auto& [name, field] : outputs) {
    if ((a.tensors().*field).data == nullptr) continue;
    EXPECT_LE(largest_difference(a.tensors().*field, b.tensors().*field), tolerance) << name;
  }
}

}  // namespace rotunda::testing
