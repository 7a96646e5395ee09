// Small arrays of integers for the device, written in stream order.
#pragma once

#include <span>

#include "rotunda/device.hpp"

namespace rotunda::cudnn {

/// to = values. The values travel as kernel parameters: they need not outlive the call, also where it is captured into
/// a graph. The stream's device must be current. @throws Error device
void write_ints(int* to, std::span<const int> values, Stream stream);

}  // namespace rotunda::cudnn
