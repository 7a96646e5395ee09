#include "kernel/mma/call.hpp"
#include "kernel/mma/forward.cuh"
#include "kernel/mma/launch.cuh"

namespace rotunda::mma {

void forward_bf16(const ForwardCall& call, const Tiling& tiling, std::int64_t blocks, cudaStream_t stream) {
  launch_forward<__nv_bfloat16>(call, tiling, blocks, stream);
}

bool compiled_for_device() {
  cudaFuncAttributes attributes;
  const bool found = cudaFuncGetAttributes(&attributes, forward_kernel<__nv_bfloat16, Forward64>) == cudaSuccess;
  if (!found) (void)cudaGetLastError();
  return found;
}

}  // namespace rotunda::mma
