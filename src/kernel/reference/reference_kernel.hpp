// The reference kernel: row by row in float64, every feature, never fast. What other kernels are compared to.
#pragma once

#include "kernel/kernel.hpp"

namespace rotunda {

/// Serves every problem. Sums inside a call are float64; the running state between calls is the contract's fp32.
/// Deterministic: a row's sums run over its slices in the order given, whatever the threads.
[[nodiscard]] const Kernel& reference_kernel();

}  // namespace rotunda
