// What forward and backward share: who sees whom, rows as float64, scratch.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "base/fail.hpp"
#include "base/half.hpp"
#include "kernel/kernel.hpp"

namespace rotunda::reference {

/// Calls body(key row) for every key that query row `row` of batch entry `b` sees, slice by slice, keys ascending.
template <class Body>
void for_each_visible_key(std::span<const Slice> slices, std::int64_t b, std::int64_t row, Body&& body) {
  for (const Slice& slice : slices) {
    const std::int64_t i = row - slice.q_begin;
    if (slice.batch != b || i < 0 || i >= slice.q_len) continue;
    // The band  -left <= (k_pos + j) - (q_pos + i) <= right  as an interval of j.
    const std::int64_t diagonal = slice.q_pos + i - slice.k_pos;
    const std::int64_t begin = slice.left == kInfinity ? 0 : std::max<std::int64_t>(0, diagonal - slice.left);
    const std::int64_t end = slice.right == kInfinity ? slice.k_len : std::min(slice.k_len, diagonal + slice.right + 1);
    for (std::int64_t j = begin; j < end; ++j) body(slice.k_begin + j);
  }
}

[[nodiscard]] inline bool sees_something(std::span<const Slice> slices, std::int64_t b, std::int64_t row) {
  bool seen = false;
  for_each_visible_key(slices, b, row, [&](std::int64_t) { seen = true; });
  return seen;
}

template <class T>
[[nodiscard]] double widen(T value) {
  return static_cast<double>(static_cast<float>(value));
}

template <class T>
void load(const T* from, std::span<double> to) {
  for (std::size_t i = 0; i < to.size(); ++i) to[i] = widen(from[i]);
}

template <class T>
void store(std::span<const double> from, T* to) {
  for (std::size_t i = 0; i < from.size(); ++i) to[i] = T(static_cast<float>(from[i]));
}

template <class T>
[[nodiscard]] double dot(std::span<const double> a, const T* b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * widen(b[i]);
  return sum;
}

/// sum += factor·row
template <class T>
void add_scaled(std::span<double> sum, double factor, const T* row) {
  for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += factor * widen(row[i]);
}

/// Hands out pieces of one worker's share of the workspace.
class Scratch {
 public:
  Scratch(const KernelContext& context, int worker, std::int64_t doubles_per_worker)
      : next_(reinterpret_cast<double*>(context.workspace.data()) + worker * doubles_per_worker) {}

  [[nodiscard]] std::span<double> take(std::int64_t count) {
    const std::span<double> piece(next_, static_cast<std::size_t>(count));
    next_ += count;
    return piece;
  }

  /// @throws Error internal where the workspace is too small.
  static void check(const KernelContext& context, std::int64_t doubles_per_worker) {
    const auto need = static_cast<std::size_t>(context.threads.threads() * doubles_per_worker) * sizeof(double);
    if (context.workspace.size() < need) {
      fail(ErrorKind::internal, "reference kernel: the workspace has {} bytes, {} are needed", context.workspace.size(),
           need);
    }
  }

 private:
  double* next_;
};

/// Doubles of scratch a worker needs for buffers with this many key rows.
[[nodiscard]] inline std::int64_t forward_scratch(std::int64_t rows_k, std::int64_t d, std::int64_t d_v) {
  return rows_k + d + d_v;  // a row's logits, q, out
}
[[nodiscard]] inline std::int64_t backward_scratch(std::int64_t rows_k, std::int64_t d, std::int64_t d_v) {
  return rows_k * (d + d_v) + 2 * d + d_v;  // dk, dv, q, dq, dout
}

void forward(const ForwardArgs& args, const KernelContext& context);
void backward(const BackwardArgs& args, const KernelContext& context);

}  // namespace rotunda::reference
