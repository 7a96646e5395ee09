#include "kernel/mma/forward.cuh"
#include "kernel/mma/launch.cuh"

namespace rotunda::mma {

void forward_bf16(const ForwardCall& call, const Tiling& tiling, std::int64_t blocks, cudaStream_t stream) {
  launch_forward<__nv_bfloat16>(call, tiling, blocks, stream);
}

}  // namespace rotunda::mma
