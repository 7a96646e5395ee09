// Thread block clusters: ranks, barriers, values for another CTA; and the order of dependent launches.
#pragma once

#include <cstdint>

namespace rotunda::sm90::ptx {

__device__ __forceinline__ std::uint32_t cluster_rank() {
  std::uint32_t rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

/// All threads of all CTAs of the cluster; what was written before is seen after.
__device__ __forceinline__ void cluster_sync() {
  asm volatile(
      "barrier.cluster.arrive.release.aligned;\n"
      "barrier.cluster.wait.acquire.aligned;" ::
          : "memory");
}

/// Writes 4 bytes to shared address `to` of CTA `rank`, counted as bytes by that CTA's `barrier`.
__device__ __forceinline__ void store_remote(std::uint32_t to, std::uint32_t barrier, std::uint32_t rank, int value) {
  asm volatile(
      "{\n"
      ".reg .b32 remote, remote_barrier;\n"
      "mapa.shared::cluster.u32 remote, %0, %2;\n"
      "mapa.shared::cluster.u32 remote_barrier, %1, %2;\n"
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.u32 [remote], %3, [remote_barrier];\n"
      "}" ::"r"(to),
      "r"(barrier), "r"(rank), "r"(value)
      : "memory");
}

/// The launch that depends on this one may begin.
__device__ __forceinline__ void launch_dependents() {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

/// Returns when the launch that this one depends on has ended and its writes are seen.
__device__ __forceinline__ void wait_for_prerequisites() {
  asm volatile("griddepcontrol.wait;" ::: "memory");
}

}  // namespace rotunda::sm90::ptx
