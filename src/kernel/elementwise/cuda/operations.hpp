// The operations of Elementwise on device memory, each enqueued on a stream of the current device. The width of offsets
// is the caller's choice for tests alone.
#pragma once

#include "base/cuda/index.hpp"
#include "kernel/elementwise/elementwise.hpp"

namespace rotunda::cuda {

// flat.cu
void fill(const TensorView& to, float value, IndexWidth width, Stream stream);
void convert(const TensorView& from, const TensorView& to, IndexWidth width, Stream stream);
void add(const TensorView& from, const TensorView& to, const TensorView& low, IndexWidth width, Stream stream);

// row_dot.cu
void row_dot(const TensorView& out, const TensorView& dout, const TensorView& delta, IndexWidth width, Stream stream);

// finish.cu
void finish_with_sink(const RowState& state, const TensorView& out, const TensorView& sink, const RowList& rows,
                      Stream stream);

// row_statistics.cu
void fill_sink(const TensorView& lse, const TensorView& sink, const RowList& rows, Stream stream);
void sink_gradient(const TensorView& lse, const TensorView& delta, const TensorView& sink, const RowList& rows,
                   const TensorView& dsink, Stream stream);
void row_max(const TensorView& from, const TensorView& to, Stream stream);

}  // namespace rotunda::cuda
