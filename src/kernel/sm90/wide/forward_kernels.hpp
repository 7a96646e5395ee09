// The compiled forward kernels.
#pragma once

#include <cstdint>

#include "rotunda/tensor.hpp"

namespace rotunda::sm90::wide {

/// void(ForwardMaps, ForwardCall), as cudaLaunchKernelExC takes it, and how it is launched.
struct ForwardKernel {
  const void* function = nullptr;
  int threads = 0, shared_bytes = 0;
  int value_rows = 0;  ///< of V in a box: a CTA's half of a slab
};

/// There is a kernel for head dims up to 288, 320, … 512: what is computed beyond a head dim is less than a step.
constexpr int kLeastDim = 288, kMostDim = 512, kDimStep = 32;

[[nodiscard]] ForwardKernel forward_kernel_bf16(int dim);
[[nodiscard]] ForwardKernel forward_kernel_fp16(int dim);

}  // namespace rotunda::sm90::wide
