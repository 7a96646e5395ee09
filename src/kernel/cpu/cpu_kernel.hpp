// The `cpu` kernel: attention over slices with SIMD, on any processor.
#pragma once

#include "kernel/kernel.hpp"

namespace rotunda {

/// Serves every problem: fp32, bf16, fp16; any mask; head dims 1 to 512, d ≠ d_v; the same bits whatever the threads,
/// strides and timing. docs/kernels/cpu.md tells how.
[[nodiscard]] const Kernel& cpu_kernel();

}  // namespace rotunda
