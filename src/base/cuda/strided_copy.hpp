// Copies between strided views of device memory, by the copy engines where rows are long enough.
#pragma once

#include "rotunda/device.hpp"
#include "rotunda/tensor.hpp"

namespace rotunda::cuda {

/// to = from, of the same shape and dtype, any strides, in stream order; either may lie on a peer of `device`, whose
/// stream it is. Bytes are carried as they are.
void copy(const TensorView& from, const TensorView& to, int device, Stream stream);

}  // namespace rotunda::cuda
