// The frame of both backward kernels: one warpgroup copies, two multiply, with a ring of stages between them. A stage
// holds 64 of the summed axis: A for 128 rows of the result, B for its columns.
#pragma once

#include <cuda_runtime.h>

#include "base/cuda/check.hpp"
#include "kernel/sm90/ptx/cluster.cuh"
#include "kernel/sm90/ptx/mbarrier.cuh"
#include "kernel/sm90/ptx/registers.cuh"

namespace rotunda::sm90::wide {

constexpr int kWarpgroup = 128, kConsumers = 2, kConsumerWarps = kConsumers * kWarpgroup / 32;
constexpr int kThreads = (1 + kConsumers) * kWarpgroup, kProducerWarps = kWarpgroup / 32;

constexpr std::uint32_t kBoxBytes = 64 * 128;        ///< 64 rows of 64 elements: what one copy brings
constexpr std::uint32_t kRowsBytes = 2 * kBoxBytes;  ///< A

/// Shared memory of a kernel whose B has kBoxes boxes and which keeps kExtra bytes of its own behind the stages.
template <int kRingStages, int kBoxes, int kExtra>
struct RingLayout {
  static constexpr int kStages = kRingStages;
  static constexpr std::uint32_t kStage = kRowsBytes + kBoxes * kBoxBytes;
  static constexpr std::uint32_t kOwn = kStages * kStage;
  static constexpr std::uint32_t kFull = kOwn + kExtra, kEmpty = kFull + 8 * kStages, kWhole = kEmpty + 8 * kStages;
  static constexpr std::uint32_t kHalves = kWhole + 8 * kStages, kBytes = kHalves + 4 * kStages;
};

/// Launches a kernel that may begin, on thread blocks' places that become free, before the launch ahead has ended; it
/// waits for that one's results itself (ptx::wait_for_prerequisites). `blocks`, in clusters of kCluster.
template <int kCluster, class Params>
void launch_early(void (*kernel)(Params), const Params& params, int blocks, std::uint32_t shared_bytes, Stream stream) {
  ROTUNDA_CUDA(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared_bytes)));
  cudaLaunchAttribute attributes[2]{};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim = {kCluster, 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(blocks));
  config.blockDim = dim3(kThreads);
  config.dynamicSmemBytes = shared_bytes;
  config.stream = cuda::native(stream);
  config.attrs = attributes;
  config.numAttrs = 2;
  ROTUNDA_CUDA(cudaLaunchKernelEx(&config, kernel, params));
}

/// A place in the ring: stages follow each other, through all tiles of a thread block. The blocks of a cluster fill and
/// free stages of the same number together.
template <class Layout, int kCluster>
class Ring {
  static constexpr int kStages = Layout::kStages;

 public:
  __device__ explicit Ring(std::uint32_t base)
      : base_(base), rank_(kCluster == 1 ? 0 : static_cast<int>(ptx::cluster_rank())) {}

  /// By all threads, once; waits for the launch ahead.
  __device__ void init() const {
    if (threadIdx.x == 0) {
      for (int i = 0; i < kStages; ++i) {
        ptx::mbarrier_init(base_ + Layout::kFull + 8 * i, 1);
        ptx::mbarrier_init(base_ + Layout::kEmpty + 8 * i, kConsumerWarps * kCluster);
        ptx::mbarrier_init(base_ + Layout::kWhole + 8 * i, 1);
      }
      ptx::fence_mbarrier_init();
    }
    ptx::cluster_sync();
    ptx::launch_dependents();
    ptx::wait_for_prerequisites();
  }
  /// By all threads, at the end: other blocks' copies and arrivals come here as long as they need the stages.
  __device__ void leave() const {
    __syncwarp();
    ptx::cluster_sync();
  }

  [[nodiscard]] __device__ std::uint32_t stage() const { return base_ + (at_ % kStages) * Layout::kStage; }
  [[nodiscard]] __device__ std::uint32_t full() const { return base_ + Layout::kFull + 8 * (at_ % kStages); }
  [[nodiscard]] __device__ std::uint32_t empty() const { return base_ + Layout::kEmpty + 8 * (at_ % kStages); }
  /// Where copies are counted of which something is to be done before the stage is full.
  [[nodiscard]] __device__ std::uint32_t whole() const { return base_ + Layout::kWhole + 8 * (at_ % kStages); }
  /// What to add to a descriptor of stage 0.
  [[nodiscard]] __device__ std::uint64_t descriptor_offset() const { return (at_ % kStages) * (Layout::kStage / 16); }

  __device__ void wait_full() const { ptx::mbarrier_wait(full(), at_ / kStages & 1); }
  __device__ void wait_empty() const { ptx::mbarrier_wait(empty(), (at_ / kStages & 1) ^ 1); }
  /// `parities`: a bit a stage, those of the waits before.
  __device__ void wait_whole(std::uint32_t& parities) const {
    ptx::mbarrier_wait(whole(), parities >> at_ % kStages & 1);
    parities ^= 1U << at_ % kStages;
  }
  /// The stage before this one has been read by this warp.
  __device__ void release_previous() const { release(at_ - 1); }
  /// This stage is not needed by this warp, which has seen it come.
  __device__ void release() const { release(at_); }
  /// A number that goes with the stage: set before its last arrival, read after wait_full, by the lane that gives the
  /// stage back to this block.
  [[nodiscard]] __device__ int halves() const {
    const int bits = lane() == rank_ ? ptx::load_shared(base_ + Layout::kHalves + 4 * (at_ % kStages)) : 0;
    return __shfl_sync(0xffffffffU, bits, rank_);
  }
  __device__ void set_halves(int bits) const { ptx::store_shared(base_ + Layout::kHalves + 4 * (at_ % kStages), bits); }
  __device__ void advance(int stages = 1) { at_ += static_cast<std::uint32_t>(stages); }

 private:
  [[nodiscard]] __device__ static int lane() { return static_cast<int>(threadIdx.x) % 32; }
  /// Every warp arrives for itself: none can miss a phase, and what its lanes read comes before what is written next.
  __device__ void release(std::uint32_t at) const {
    __syncwarp();
    const std::uint32_t empty = base_ + Layout::kEmpty + 8 * (at % kStages);
    if (lane() == rank_) {
      ptx::mbarrier_arrive(empty);
    } else if (lane() < kCluster) {
      ptx::mbarrier_arrive_remote(empty, static_cast<std::uint32_t>(lane()));
    }
  }

  std::uint32_t base_, at_ = 0;
  int rank_;  ///< of this block in its cluster
};

}  // namespace rotunda::sm90::wide
