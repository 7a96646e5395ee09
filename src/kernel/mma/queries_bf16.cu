#include "kernel/mma/backward.cuh"
#include "kernel/mma/launch.cuh"

namespace rotunda::mma {

void queries_bf16(const BackwardCall& call, const Tiling& tiling, std::int64_t blocks, cudaStream_t stream) {
  launch_queries<__nv_bfloat16>(call, tiling, blocks, stream);
}

}  // namespace rotunda::mma
