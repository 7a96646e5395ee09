// Measuring what plans need to know of this machine.
#pragma once

#include <string>

#include "cli/options.hpp"
#include "rotunda/machine.hpp"

namespace rotunda::cli {

/// Measures the CPU and, where there is one, the first CUDA device, each kernel at several head dims, and keeps the
/// figures in the calibration file. A CUDA device's links and memory are not measured. Takes some seconds.
/// @throws Error bad_input where ROTUNDA_CACHE is not set or can't be written to
void calibrate(const Options& options);

/// What the calibration of a device says, a line a figure; empty where there is none.
[[nodiscard]] std::string calibration_text(const Device& device);

}  // namespace rotunda::cli
