// What happens to tensors between attention calls. All of it is memory-bound and deterministic.
//
// Views are [batch, row, head, dim]; row statistics (lse, delta) have dim 1 and are fp32.
#pragma once

#include <memory>
#include <span>

#include "base/thread_pool.hpp"
#include "rotunda/device.hpp"
#include "rotunda/problem.hpp"
#include "rotunda/tensor.hpp"

namespace rotunda {

/// Rows that an operation is about, and the same list in the device's memory where there is one.
struct RowList {
  std::span<const RowSpan> rows;
  const RowSpan* device = nullptr;
};

/// A running state of rows: acc normalised, its log-sum-exp is lse + lse_low (lse_low may be absent).
struct RowState {
  TensorView acc, lse, lse_low;
};

/// The operations on one device. On a CUDA device each call enqueues on the stream that the object was made for; views
/// and lists must stay valid until the work is done.
class Elementwise {
 public:
  virtual ~Elementwise() = default;

  /// to = value.
  virtual void fill(const TensorView& to, float value) const = 0;
  /// to = from, in to's dtype.
  virtual void convert(const TensorView& from, const TensorView& to) const = 0;
  /// to += from, both fp32 (from may be 16 bits on CUDA devices). low (may be empty) += what the rounding of that sum
  /// lost: Knuth's two-sum (The Art of Computer Programming, volume 2, section 4.2.2, theorem B).
  virtual void add(const TensorView& from, const TensorView& to, const TensorView& low) const = 0;
  /// delta = Σ over dims of dout·out (D of FlashAttention-2, Dao 2023, section 3.1). On a CPU one chain of fused
  /// multiply-adds in fp32, as kernels there sum dP = dout·Vᵀ, so that where out is a row of V (one visible key)
  /// dP - delta is exactly 0.
  virtual void row_dot(const TensorView& out, const TensorView& dout, const TensorView& delta) const = 0;
  /// out = acc in out's dtype; rows in `rows` take the sink in: with lse' = log(exp(lse + lse_low) + exp(sink)),
  /// out = acc·exp(lse + lse_low - lse') and lse = lse'. A row whose lse is -inf sees nothing: its out is 0 whatever
  /// the sink, also where that is NaN. sink: fp32 [1, 1, heads of the views, 1], without data: 0.
  virtual void finish_with_sink(const RowState& state, const TensorView& out, const TensorView& sink,
                                const RowList& rows) const = 0;
  /// lse = sink for `rows`.
  virtual void fill_sink(const TensorView& lse, const TensorView& sink, const RowList& rows) const = 0;
  /// dsink[head] = -Σ over `rows` of exp(sink - lse)·delta, summed in float64 in a fixed order (on CUDA devices the
  /// terms of four rows at a time in fp32). lse includes the sink.
  virtual void sink_gradient(const TensorView& lse, const TensorView& delta, const TensorView& sink,
                             const RowList& rows, const TensorView& dsink) const = 0;
  /// to[head] = max over rows of from.
  virtual void row_max(const TensorView& from, const TensorView& to) const = 0;
};

/// On host memory, with the threads of `threads`, which must outlive it.
[[nodiscard]] std::unique_ptr<Elementwise> host_elementwise(ThreadPool& threads);
/// On a CUDA device, in the order of `stream`. @throws Error unsupported in a build without CUDA
[[nodiscard]] std::unique_ptr<Elementwise> cuda_elementwise(const Device& device, Stream stream);

}  // namespace rotunda
