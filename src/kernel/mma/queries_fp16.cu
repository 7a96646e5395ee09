#include "kernel/mma/backward.cuh"
#include "kernel/mma/launch.cuh"

namespace rotunda::mma {

void queries_fp16(const BackwardCall& call, const Tiling& tiling, std::int64_t blocks, cudaStream_t stream) {
  launch_queries<__half>(call, tiling, blocks, stream);
}

}  // namespace rotunda::mma
