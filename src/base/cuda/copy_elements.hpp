// Element by element copies between strided views by threads of the device.
#pragma once

#include "base/loops.hpp"
#include "rotunda/device.hpp"
#include "rotunda/tensor.hpp"

namespace rotunda::cuda {

/// to = from over `loops` (of the two views), on the current device. 16-bit and 32-bit elements, bits as they are.
void copy_elements(const TensorView& from, const TensorView& to, const Loops& loops, Stream stream);

}  // namespace rotunda::cuda
