#include "kernel/elementwise/elementwise.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "base/copy.hpp"
#include "base/half.hpp"
#include "kernel/row_state.hpp"

namespace rotunda {
namespace {

constexpr std::int64_t kRowsPerTask = 64;  // large enough to hide a task's start, small enough to share out

/// Calls body(batch, first row, rows) for blocks of rows, in parallel.
template <class Body>
void for_row_blocks(const TensorView& view, ThreadPool& threads, Body&& body) {
  if (view.empty()) return;
  const std::int64_t blocks = (view.rows() + kRowsPerTask - 1) / kRowsPerTask;
  threads.parallel(view.batch() * blocks, [&](std::int64_t task, int) {
    const std::int64_t first = task % blocks * kRowsPerTask;
    body(task / blocks, first, std::min(kRowsPerTask, view.rows() - first));
  });
}

TensorView block(const TensorView& view, std::int64_t batch, std::int64_t first, std::int64_t rows) {
  TensorView result = view.narrow_rows(first, rows);
  result.data =
      static_cast<std::byte*>(result.data) + batch * view.stride[0] * static_cast<std::int64_t>(size_of(view.dtype));
  result.shape[0] = 1;
  return result;
}

/// log(exp(a) + exp(b)), also where either is -inf. NaN stays.
double log_add(double a, double b) {
  if (std::isnan(a) || std::isnan(b)) return a + b;
  const double high = std::max(a, b);
  if (high == -std::numeric_limits<double>::infinity()) return high;
  return high + std::log1p(std::exp(std::min(a, b) - high));
}

/// exp(a) / exp(whole), also where both are the same infinity. Of -inf it is nothing, whatever else the whole is.
double share(double a, double whole) {
  if (a == whole) return 1;
  return a == -std::numeric_limits<double>::infinity() ? 0 : std::exp(a - whole);
}

/// Calls body(batch, row) for the rows of the spans.
template <class Body>
void for_rows(std::span<const RowSpan> spans, Body&& body) {
  for (const RowSpan& span : spans) {
    for (std::int64_t row = span.begin; row < span.begin + span.len; ++row) body(span.batch, row);
  }
}

/// The sink of a head; a sink that is no input is 0.
float sink_of(const TensorView& sink, std::int64_t head) {
  return sink.data == nullptr ? 0.0F : *sink.at<float>(0, 0, head);
}

double low_of(const TensorView& low, std::int64_t batch, std::int64_t row, std::int64_t head) {
  return low.data == nullptr ? 0.0 : *low.at<float>(batch, row, head);
}

class HostElementwise final : public Elementwise {
 public:
  explicit HostElementwise(ThreadPool& threads) : threads_(threads) {}

  void fill(const TensorView& to, float value) const override;
  void convert(const TensorView& from, const TensorView& to) const override;
  void add(const TensorView& from, const TensorView& to, const TensorView& low) const override;
  void row_dot(const TensorView& out, const TensorView& dout, const TensorView& delta) const override;
  void finish_with_sink(const RowState& state, const TensorView& out, const TensorView& sink,
                        const RowList& rows) const override;
  void fill_sink(const TensorView& lse, const TensorView& sink, const RowList& rows) const override;
  void sink_gradient(const TensorView& lse, const TensorView& delta, const TensorView& sink, const RowList& rows,
                     const TensorView& dsink) const override;
  void row_max(const TensorView& from, const TensorView& to) const override;

 private:
  ThreadPool& threads_;
};

void HostElementwise::fill(const TensorView& to, float value) const {
  for_row_blocks(to, threads_, [&](std::int64_t batch, std::int64_t first, std::int64_t rows) {
    dispatch_dtype(to.dtype, [&](auto element) {
      using T = decltype(element);
      for (std::int64_t row = first; row < first + rows; ++row) {
        for (std::int64_t head = 0; head < to.heads(); ++head) {
          T* data = to.at<T>(batch, row, head);
          for (std::int64_t i = 0; i < to.dim(); ++i) data[i * to.stride[3]] = T(value);
        }
      }
    });
  });
}

void HostElementwise::convert(const TensorView& from, const TensorView& to) const {
  for_row_blocks(to, threads_, [&](std::int64_t batch, std::int64_t first, std::int64_t rows) {
    rotunda::convert(block(from, batch, first, rows), block(to, batch, first, rows));
  });
}

void HostElementwise::add(const TensorView& from, const TensorView& to, const TensorView& low) const {
  for_row_blocks(to, threads_, [&](std::int64_t batch, std::int64_t first, std::int64_t rows) {
    for (std::int64_t row = first; row < first + rows; ++row) {
      for (std::int64_t head = 0; head < to.heads(); ++head) {
        const float* source = from.at<float>(batch, row, head);
        float* target = to.at<float>(batch, row, head);
        float* lost = low.data == nullptr ? nullptr : low.at<float>(batch, row, head);
        for (std::int64_t i = 0; i < to.dim(); ++i) {
          const float a = target[i * to.stride[3]];
          const float b = source[i * from.stride[3]];
          const float sum = a + b;
          target[i * to.stride[3]] = sum;
          if (lost == nullptr) continue;
          const float b_in_sum = sum - a;
          lost[i * low.stride[3]] += (a - (sum - b_in_sum)) + (b - b_in_sum);
        }
      }
    }
  });
}

void HostElementwise::row_dot(const TensorView& out, const TensorView& dout, const TensorView& delta) const {
  for_row_blocks(delta, threads_, [&](std::int64_t batch, std::int64_t first, std::int64_t rows) {
    dispatch_dtype(out.dtype, [&](auto element) {
      using T = decltype(element);
      for (std::int64_t row = first; row < first + rows; ++row) {
        for (std::int64_t head = 0; head < out.heads(); ++head) {
          const T* a = out.at<T>(batch, row, head);
          const T* b = dout.at<T>(batch, row, head);
          double sum = 0;  // in which each product is exact
          for (std::int64_t i = 0; i < out.dim(); ++i) {
            sum += static_cast<double>(static_cast<float>(a[i * out.stride[3]])) *
                   static_cast<double>(static_cast<float>(b[i * dout.stride[3]]));
          }
          *delta.at<float>(batch, row, head) = static_cast<float>(sum);
        }
      }
    });
  });
}

void HostElementwise::finish_with_sink(const RowState& state, const TensorView& out, const TensorView& sink,
                                       const RowList& rows) const {
  const TensorView& acc = state.acc;
  const TensorView& lse = state.lse;
  // First the factors, by row and head; rows outside the spans keep 1.
  const std::int64_t heads = lse.heads();
  std::vector<float> factor(static_cast<std::size_t>(lse.elements()), 1.0F);
  for_rows(rows.rows, [&](std::int64_t batch, std::int64_t row) {
    for (std::int64_t head = 0; head < heads; ++head) {
      float& value = *lse.at<float>(batch, row, head);
      const double without = static_cast<double>(value) + low_of(state.lse_low, batch, row, head);
      const double with_sink = log_add(without, sink_of(sink, head));
      const auto weight = static_cast<float>(share(without, with_sink));
      factor[static_cast<std::size_t>((batch * lse.rows() + row) * heads + head)] = weight;
      value = static_cast<float>(with_sink);
    }
  });
  for_row_blocks(out, threads_, [&](std::int64_t batch, std::int64_t first, std::int64_t count) {
    dispatch_dtype(out.dtype, [&](auto element) {
      using T = decltype(element);
      for (std::int64_t row = first; row < first + count; ++row) {
        for (std::int64_t head = 0; head < heads; ++head) {
          const float* from = acc.at<float>(batch, row, head);
          T* to = out.at<T>(batch, row, head);
          const float f = factor[static_cast<std::size_t>((batch * lse.rows() + row) * heads + head)];
          for (std::int64_t i = 0; i < out.dim(); ++i) to[i * out.stride[3]] = T(from[i * acc.stride[3]] * f);
        }
      }
    });
  });
}

void HostElementwise::fill_sink(const TensorView& lse, const TensorView& sink, const RowList& rows) const {
  for_rows(rows.rows, [&](std::int64_t batch, std::int64_t row) {
    for (std::int64_t head = 0; head < lse.heads(); ++head) *lse.at<float>(batch, row, head) = sink_of(sink, head);
  });
}

void HostElementwise::sink_gradient(const TensorView& lse, const TensorView& delta, const TensorView& sink,
                                    const RowList& rows, const TensorView& dsink) const {
  std::vector<double> sum(static_cast<std::size_t>(lse.heads()), 0.0);
  for_rows(rows.rows, [&](std::int64_t batch, std::int64_t row) {
    for (std::int64_t head = 0; head < lse.heads(); ++head) {
      const double weight = share(sink_of(sink, head), *lse.at<float>(batch, row, head));
      sum[static_cast<std::size_t>(head)] -= weight * *delta.at<float>(batch, row, head);
    }
  });
  for (std::int64_t head = 0; head < lse.heads(); ++head) {
    *dsink.at<float>(0, 0, head) = static_cast<float>(sum[static_cast<std::size_t>(head)]);
  }
}

void HostElementwise::row_max(const TensorView& from, const TensorView& to) const {
  for (std::int64_t head = 0; head < to.heads(); ++head) {
    float best = -std::numeric_limits<float>::infinity();
    for (std::int64_t row = 0; row < from.rows(); ++row) best = greater(best, *from.at<float>(0, row, head));
    *to.at<float>(0, 0, head) = best;
  }
}

}  // namespace

std::unique_ptr<Elementwise> host_elementwise(ThreadPool& threads) {
  return std::make_unique<HostElementwise>(threads);
}

}  // namespace rotunda
