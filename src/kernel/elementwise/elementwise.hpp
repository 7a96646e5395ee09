// What happens to tensors between attention calls, on host memory. All of it is memory-bound and deterministic.
//
// Views are [batch, row, head, dim]; row statistics (lse, delta) have dim 1 and are fp32.
#pragma once

#include <span>

#include "base/thread_pool.hpp"
#include "rotunda/problem.hpp"
#include "rotunda/tensor.hpp"

namespace rotunda::elementwise {

/// to = value.
void fill(const TensorView& to, float value, ThreadPool& threads);

/// to = from, in to's dtype.
void convert(const TensorView& from, const TensorView& to, ThreadPool& threads);

/// to += from, both fp32. low (may be empty) += what the rounding of that sum lost: Knuth's two-sum (The Art of
/// Computer Programming, volume 2, section 4.2.2, theorem B).
void add(const TensorView& from, const TensorView& to, const TensorView& low, ThreadPool& threads);

/// delta = Σ over dims of dout·out (D of FlashAttention-2, Dao 2023, section 3.1), one chain of fused multiply-adds in
/// fp32: as kernels sum dP = dout·Vᵀ, so that where out is a row of V (one visible key) dP - delta is exactly 0.
void row_dot(const TensorView& out, const TensorView& dout, const TensorView& delta, ThreadPool& threads);

/// A running state of rows: acc normalised, its log-sum-exp is lse + lse_low.
struct RowState {
  TensorView acc, lse, lse_low;
};

/// out = acc in out's dtype; rows in `rows` take the sink in: with lse' = log(exp(lse + lse_low) + exp(sink)),
/// out = acc·exp(lse + lse_low - lse') and lse = lse'. sink[head of the views].
void finish_with_sink(const RowState& state, const TensorView& out, const float* sink, std::span<const RowSpan> rows,
                      ThreadPool& threads);

/// lse = sink for `rows`.
void fill_sink(const TensorView& lse, const float* sink, std::span<const RowSpan> rows);

/// dsink[head] = -Σ over `rows` of exp(sink - lse)·delta, summed in float64 in row order. lse includes the sink.
void sink_gradient(const TensorView& lse, const TensorView& delta, const float* sink, std::span<const RowSpan> rows,
                   float* dsink);

/// to[head] = max over rows of from.
void row_max(const TensorView& from, const TensorView& to);

}  // namespace rotunda::elementwise
