// The kernels of one dtype by head dim.
#pragma once

#include "base/fail.hpp"
#include "kernel/sm90/wide/forward_kernel.cuh"
#include "kernel/sm90/wide/forward_kernels.hpp"

namespace rotunda::sm90::wide {

template <class T, int kDim = kLeastDim>
ForwardKernel forward_kernel_of(int dim) {
  if (dim <= kDim) {
    using S = Shape<chunks_of(kDim)>;
    return {reinterpret_cast<const void*>(&forward_kernel<T, kDim>), kThreads, S::kBytes, S::kHalfSlabKeys};
  }
  if constexpr (kDim < kMostDim) return forward_kernel_of<T, kDim + kDimStep>(dim);
  fail(ErrorKind::internal, "no forward kernel of head dim {}", dim);
}

}  // namespace rotunda::sm90::wide
