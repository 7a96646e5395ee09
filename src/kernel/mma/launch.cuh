// Starts a kernel of a compiled shape.
#pragma once

#include "base/cuda/check.hpp"
#include "kernel/mma/kernels.cuh"

namespace rotunda::mma {

template <class Call>
void launch(void (*kernel)(Call), const Call& call, const Tiling& tiling, std::int64_t blocks, cudaStream_t stream,
            const char* name) {
  ROTUNDA_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, tiling.bytes));
  kernel<<<static_cast<unsigned>(blocks), static_cast<unsigned>(tiling.threads), static_cast<std::size_t>(tiling.bytes),
           stream>>>(call);
  cuda::check_launch(name);
}

}  // namespace rotunda::mma
