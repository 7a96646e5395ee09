// The forward kernel: who does what. One CTA an SM in clusters of two; a warpgroup that loads, and two that compute.
#pragma once

#include "kernel/sm90/wide/consumer.cuh"
#include "kernel/sm90/wide/loaders.cuh"

namespace rotunda::sm90::wide {

// Of 65,536 registers the launch gives each thread 168; the loaders leave theirs to the consumers.
constexpr int kLoaderRegisters = 40, kConsumerRegisters = 232;

template <class S, int kChunks>
__device__ void init_barriers(std::uint32_t base) {
  const auto init = [base](int first, int count, int arrivals) {
    for (int i = 0; i < count; ++i) ptx::mbarrier_init(base + first + 8 * i, arrivals);
  };
  constexpr int kWarps = kWarpgroup / 32;
  constexpr int kTileReaders = 3;  // the loaders of keys and of queries, the sweeper
  init(S::kKeysFull, kConsumers * kChunks, 1);
  init(S::kValuesFull, S::kValueBarriers, 1);
  init(S::kEdgeFull, S::kValueBarriers, 1);
  init(S::kStageFree, S::kStages, kConsumers * kCluster);
  init(S::kQueryFull, kChunks, 1);
  init(S::kQueryFree, kChunks, kConsumers);
  init(S::kWeightsFull, kConsumers * kPieces, kWarps);
  init(S::kTileFull, kQueue, 1);
  init(S::kTileFree, kQueue, kTileReaders);
  init(S::kMailFull, kMail, 1);
  init(S::kMailFree, kMail, 1);
  ptx::fence_mbarrier_init();
}

/// For head dims up to kDim, a multiple of kDimStep.
template <class T, int kDim>
__global__ void __launch_bounds__(kThreads, 1)
    forward_kernel(const __grid_constant__ ForwardMaps maps, const __grid_constant__ ForwardCall call) {
  constexpr int kChunks = chunks_of(kDim);
  using S = Shape<kChunks>;
  extern __shared__ __align__(1024) std::uint8_t memory[];
  if (threadIdx.x == 0) init_barriers<S, kChunks>(ptx::shared_address(memory));
  __syncthreads();
  ptx::cluster_sync();

  const int warp = ptx::uniform(static_cast<int>(threadIdx.x) / 32);
  const int consumer = warp / 4 - 1;
  if (consumer < 0) {
    ptx::setmaxnreg_dec<kLoaderRegisters>();
    if (warp == 0 && ptx::elect_lane()) KeyLoader<S, kChunks>(call, maps, memory).run();
    if (warp == 1 && ptx::elect_lane()) load_queries<S, kChunks>(call, maps, memory);
    if (warp == 2 && ptx::elect_lane()) Scheduler<S>(call, maps, memory).run();
    if (warp == 3) sweep_values<S, kChunks>(memory);
  } else {
    ptx::setmaxnreg_inc<kConsumerRegisters>();
    constexpr int kFirst = (kChunks + 1) / 2 * kChunk, kSecond = kDim - kFirst;
    if (kFirst == kSecond || consumer == 0) {
      Consumer<T, kDim, kFirst>(call, memory, consumer).run();
    } else {
      Consumer<T, kDim, kSecond>(call, memory, consumer).run();
    }
    ptx::wait_for_prerequisites();
    finish_idle_rows<T>(call);
  }
  __syncwarp();
  ptx::cluster_sync();  // the other CTA's barriers are there as long as this one arrives at them
}

}  // namespace rotunda::sm90::wide
