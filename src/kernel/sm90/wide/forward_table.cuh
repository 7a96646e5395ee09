// The kernels of one dtype by their number of chunks.
#pragma once

#include "base/fail.hpp"
#include "kernel/sm90/wide/forward_kernel.cuh"
#include "kernel/sm90/wide/forward_kernels.hpp"

namespace rotunda::sm90::wide {

template <class T, int kChunks = kLeastChunks>
ForwardKernel forward_kernel_of(int chunks) {
  if (chunks == kChunks) {
    return {reinterpret_cast<const void*>(&forward_kernel<T, kChunks>), kThreads, Shape<kChunks>::kBytes};
  }
  if constexpr (kChunks < kMostChunks) return forward_kernel_of<T, kChunks + 1>(chunks);
  fail(ErrorKind::internal, "no forward kernel of {} chunks", chunks);
}

}  // namespace rotunda::sm90::wide
