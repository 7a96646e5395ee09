// What prepares arrays for cuDNN, in stream order. The stream's device must be current.
#pragma once

#include <cstdint>
#include <span>

#include "rotunda/device.hpp"

namespace rotunda::cudnn {

/// to = values. The values travel as kernel parameters: they need not outlive the call, also where it is captured into
/// a graph. @throws Error device
void write_ints(int* to, std::span<const int> values, Stream stream);

/// Infinities among the values become 0. @throws Error device
void clear_infinities(float* values, std::int64_t count, Stream stream);

}  // namespace rotunda::cudnn
