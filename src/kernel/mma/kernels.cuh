// The compiled kernels: one source a pass and element type, so that they compile side by side.
#pragma once

#include <cuda_runtime_api.h>

#include "kernel/mma/calls.cuh"
#include "kernel/mma/tiling.hpp"

namespace rotunda::mma {

/// Each starts `blocks` blocks on the current device.
void forward_bf16(const ForwardCall& call, const Tiling& tiling, std::int64_t blocks, cudaStream_t stream);
void forward_fp16(const ForwardCall& call, const Tiling& tiling, std::int64_t blocks, cudaStream_t stream);
void queries_bf16(const BackwardCall& call, const Tiling& tiling, std::int64_t blocks, cudaStream_t stream);
void queries_fp16(const BackwardCall& call, const Tiling& tiling, std::int64_t blocks, cudaStream_t stream);
void keys_bf16(const BackwardCall& call, const Tiling& tiling, std::int64_t blocks, cudaStream_t stream);
void keys_fp16(const BackwardCall& call, const Tiling& tiling, std::int64_t blocks, cudaStream_t stream);

}  // namespace rotunda::mma
