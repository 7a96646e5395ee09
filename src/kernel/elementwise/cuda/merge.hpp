// What kernels that can't resume a running state need: their partial results are merged into it in fp32.
#pragma once

#include "kernel/elementwise/elementwise.hpp"
#include "rotunda/device.hpp"
#include "rotunda/tensor.hpp"

namespace rotunda::cuda {

/// A kernel's result over some of a row's keys: out normalised, lse fp32 natural log [batch, row, head, 1]. Where lse
/// is -inf nothing was visible and out may hold anything.
struct PartialResult {
  TensorView out, lse;
};

struct MergeFlags {
  bool init = true;  ///< the state is empty and may hold anything
  bool last = true;  ///< the result goes to `out`, else to the state
};

/// Adds a partial result to the state: with L = log(exp(lse + lse_low) + exp(partial.lse)), in float64,
/// acc = acc·exp(lse + lse_low - L) + partial.out·exp(partial.lse - L), lse + lse_low = L. With last the sum goes to
/// `out` in its dtype, acc is not written (and not needed with init), and lse is L without its low part.
/// partial.out and out are 16 bits of one dtype or fp32; rows that nothing was visible to give 0 and -inf.
/// Enqueued on the stream; deterministic; may be captured.
void merge(const PartialResult& partial, const RowState& state, const TensorView& out, const MergeFlags& flags,
           const Device& device, Stream stream);

}  // namespace rotunda::cuda
