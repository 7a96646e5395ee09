// Tensors of a problem for tests: memory, views, reproducible values, poison.
//
// An element is nearly normal and a function of (seed, tensor, packed index) alone, so every layout, stride and shard
// of a problem holds the same numbers: packed index of [row, head, dim], row = batch·s + position whatever the layout.
// Header-only; needs nothing but rotunda_base.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "base/half.hpp"
#include "base/memory.hpp"
#include "rotunda/attention.hpp"
#include "rotunda/problem.hpp"

namespace rotunda::testing {

inline constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

[[nodiscard]] inline std::uint64_t splitmix64(std::uint64_t x) {
  x += 0x9E3779B97F4A7C15U;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9U;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBU;
  return x ^ (x >> 31);
}

/// Which tensor a value belongs to.
enum class Stream : std::uint64_t { q = 0, k = 1, v = 2, dout = 3 };

/// (sum of the eight bytes of z - 1020) / 209 with z = splitmix64(splitmix64(16·seed + stream) + index).
[[nodiscard]] inline double nearly_normal(std::uint64_t seed, Stream stream, std::int64_t index) {
  const std::uint64_t key = splitmix64(16 * seed + static_cast<std::uint64_t>(stream));
  std::uint64_t bits = splitmix64(key + static_cast<std::uint64_t>(index));
  int sum = 0;
  for (; bits != 0; bits >>= 8) sum += static_cast<int>(bits & 0xff);
  return (sum - 1020) / 209.0;
}

/// Element [b, row, head, dim] of a view, whatever its dtype.
[[nodiscard]] inline double read(const TensorView& view, std::int64_t b, std::int64_t row, std::int64_t head,
                                 std::int64_t dim = 0) {
  return dispatch_dtype(view.dtype, [&](auto e) {
    const auto* p = view.at<decltype(e)>(b, row, head) + dim * view.stride[3];
    return static_cast<double>(static_cast<float>(*p));
  });
}

/// Writes an element, rounded to the view's dtype.
inline void write(const TensorView& view, std::int64_t b, std::int64_t row, std::int64_t head, std::int64_t dim,
                  double value) {
  dispatch_dtype(view.dtype, [&](auto e) {
    using T = decltype(e);
    *(view.at<T>(b, row, head) + dim * view.stride[3]) = T(static_cast<float>(value));
  });
}

/// Calls body(b, row, head, dim) for every element, dim fastest.
template <class Body>
void for_each_element(const TensorView& view, Body&& body) {
  for (std::int64_t b = 0; b < view.batch(); ++b) {
    for (std::int64_t row = 0; row < view.rows(); ++row) {
      for (std::int64_t head = 0; head < view.heads(); ++head) {
        for (std::int64_t dim = 0; dim < view.dim(); ++dim) body(b, row, head, dim);
      }
    }
  }
}

inline void fill(const TensorView& view, double value) {
  for_each_element(view, [&](auto b, auto row, auto head, auto dim) { write(view, b, row, head, dim, value); });
}

/// All elements as [batch, row, head, dim], for comparisons.
[[nodiscard]] inline std::vector<double> to_vector(const TensorView& view) {
  std::vector<double> values;
  values.reserve(static_cast<std::size_t>(view.elements()));
  for_each_element(view,
                   [&](auto b, auto row, auto head, auto dim) { values.push_back(read(view, b, row, head, dim)); });
  return values;
}

/// Fills a view with the values of a seed and stream. The view holds whole batch entries.
inline void fill_nearly_normal(const TensorView& view, std::uint64_t seed, Stream stream, double gain = 1) {
  for_each_element(view, [&](auto b, auto row, auto head, auto dim) {
    const std::int64_t index = ((b * view.rows() + row) * view.heads() + head) * view.dim() + dim;
    write(view, b, row, head, dim, gain * nearly_normal(seed, stream, index));
  });
}

/// For each packed row (batch·s + position) of a side: whether it lies in a visible length (general masks: in a
/// slice). The other rows are padding.
[[nodiscard]] inline std::vector<bool> visible_rows(const Problem& problem, Side side) {
  const bool q = side == Side::query;
  const std::int64_t s = q ? problem.s_q : problem.s_k;
  std::vector<bool> visible(static_cast<std::size_t>(problem.batches() * s), false);
  const auto mark = [&](std::int64_t begin, std::int64_t length) {
    for (std::int64_t row = begin; row < begin + length; ++row) visible[static_cast<std::size_t>(row)] = true;
  };
  if (problem.slices) {
    for (const Slice& slice : *problem.slices) {
      mark(slice.batch * s + (q ? slice.q_begin : slice.k_begin), q ? slice.q_len : slice.k_len);
    }
    return visible;
  }
  const bool packed = problem.layout == Layout::thd;
  const auto& offsets = q ? problem.cu_q : problem.cu_k;
  const auto& lengths = packed ? (q ? problem.used_q : problem.used_k) : (q ? problem.lens_q : problem.lens_k);
  for (std::size_t i = 0; i < static_cast<std::size_t>(problem.b); ++i) {
    const std::int64_t begin = packed ? offsets[i] : static_cast<std::int64_t>(i) * s;
    const std::int64_t full = packed ? offsets[i + 1] - offsets[i] : s;
    mark(begin, lengths.empty() ? full : lengths[i]);
  }
  return visible;
}

struct TensorOptions {
  std::uint64_t seed = 0;
  double gain_q = 1;
  std::optional<double> padding = kNaN;  ///< value of the padding rows of q, k, v, dout; empty: like any other row
  std::vector<float> sink{};             ///< by query head; empty with a learnable sink: values from the seed
  std::int64_t gap = 0;                  ///< unused elements (NaN) behind each [dim] vector: padded strides
};

/// Owns the whole tensors of a normalized problem in its layout. Inputs hold values from the seed, outputs NaN. Views
/// of what the problem does not ask for (sink, max_logit, gradients) are empty. Movable, not copyable.
class ProblemTensors {
 public:
  explicit ProblemTensors(const Problem& problem, const TensorOptions& options = {}) : gap_(options.gap) {
    make_inputs(problem, options);
    make_outputs(problem);
  }

  [[nodiscard]] Tensors& views() { return views_; }
  [[nodiscard]] const Tensors& views() const { return views_; }

  /// Fills every output with NaN again.
  void poison_outputs() {
    for (const TensorView* view :
         {&views_.out, &views_.lse, &views_.max_logit, &views_.dq, &views_.dk, &views_.dv, &views_.dsink}) {
      if (view->data != nullptr) fill(*view, kNaN);
    }
  }

  /// A further tensor of this size in the problem's layout, filled with NaN, alive as long as this object.
  [[nodiscard]] TensorView allocate(DType dtype, Layout layout, std::int64_t b, std::int64_t s, std::int64_t h,
                                    std::int64_t d) {
    TensorView view = make_view(nullptr, dtype, layout, b, s, h, d + gap_);
    // At least one element: an empty tensor that is there has an address.
    const std::int64_t elements = std::max<std::int64_t>(view.elements(), 1);
    buffers_.emplace_back(elements * static_cast<std::int64_t>(size_of(dtype)));
    view.data = buffers_.back().data();
    fill(view, kNaN);
    view.shape[3] = d;
    return view;
  }

 private:
  void make_inputs(const Problem& p, const TensorOptions& options) {
    const auto input = [&](TensorView& view, std::int64_t s, int h, int d, Stream stream, double gain) {
      view = allocate(p.dtype, p.layout, p.batches(), s, h, d);
      fill_nearly_normal(view, options.seed, stream, gain);
      const Side side = stream == Stream::q || stream == Stream::dout ? Side::query : Side::key;
      if (options.padding) fill_padding(view, visible_rows(p, side), *options.padding);
    };
    input(views_.q, p.s_q, p.h_q, p.d, Stream::q, options.gain_q);
    input(views_.k, p.s_k, p.h_kv, p.d, Stream::k, 1);
    input(views_.v, p.s_k, p.h_kv, p.d_v, Stream::v, 1);
    if (p.grad) input(views_.dout, p.s_q, p.h_q, p.d_v, Stream::dout, 1);
    if (p.sink != Sink::learnable) return;
    views_.sink = head_vector(p.h_q);
    for (int head = 0; head < p.h_q; ++head) {
      const auto i = static_cast<std::size_t>(head);
      const double from_seed = 2 * nearly_normal(options.seed + 1, Stream::q, head);
      write(views_.sink, 0, 0, head, 0, i < options.sink.size() ? static_cast<double>(options.sink[i]) : from_seed);
    }
  }

  void make_outputs(const Problem& p) {
    views_.out = allocate(p.dtype, p.layout, p.batches(), p.s_q, p.h_q, p.d_v);
    views_.lse = row_statistics(p.batches(), p.s_q, p.h_q);
    if (p.max_logit) views_.max_logit = head_vector(p.h_q);
    if (!p.grad) return;
    views_.dq = allocate(p.dtype, p.layout, p.batches(), p.s_q, p.h_q, p.d);
    views_.dk = allocate(p.dtype, p.layout, p.batches(), p.s_k, p.h_kv, p.d);
    views_.dv = allocate(p.dtype, p.layout, p.batches(), p.s_k, p.h_kv, p.d_v);
    if (p.sink == Sink::learnable) views_.dsink = head_vector(p.h_q);
  }

  [[nodiscard]] TensorView head_vector(std::int64_t heads) {
    const std::int64_t gap = std::exchange(gap_, 0);
    const TensorView view = allocate(DType::fp32, Layout::bshd, 1, 1, heads, 1);
    gap_ = gap;
    return view;
  }

  [[nodiscard]] TensorView row_statistics(std::int64_t b, std::int64_t s, std::int64_t h) {
    const std::int64_t gap = std::exchange(gap_, 0);
    const TensorView memory = allocate(DType::fp32, Layout::bhsd, b, s, h, 1);
    gap_ = gap;
    return make_row_view(static_cast<float*>(memory.data), b, s, h);
  }

  static void fill_padding(const TensorView& view, const std::vector<bool>& visible, double value) {
    for_each_element(view, [&](auto b, auto row, auto head, auto dim) {
      if (!visible[static_cast<std::size_t>(b * view.rows() + row)]) write(view, b, row, head, dim, value);
    });
  }

  std::int64_t gap_ = 0;
  std::vector<HostBuffer> buffers_;
  Tensors views_;
};

}  // namespace rotunda::testing
