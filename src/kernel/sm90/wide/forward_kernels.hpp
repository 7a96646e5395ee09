// The compiled forward kernels.
#pragma once

#include <cstdint>

#include "rotunda/tensor.hpp"

namespace rotunda::sm90::wide {

/// void(ForwardMaps, ForwardCall), as cudaLaunchKernelExC takes it, and how it is launched.
struct ForwardKernel {
  const void* function = nullptr;
  int threads = 0, shared_bytes = 0;
};

constexpr int kLeastChunks = 5, kMostChunks = 8;

/// For head dims up to 64 · chunks, chunks from 5 to 8.
[[nodiscard]] ForwardKernel forward_kernel_bf16(int chunks);
[[nodiscard]] ForwardKernel forward_kernel_fp16(int chunks);

}  // namespace rotunda::sm90::wide
