// Barriers in shared memory (mbarrier), named by their 32-bit shared addresses.
//
// A phase ends when its arrivals have come and its expected bytes have been written. A wait names the phase's parity:
// the first phase has parity 0, and a wait for parity 1 on a fresh barrier returns at once. Who waits must not miss a
// phase, else parities repeat and a wait returns early.
#pragma once

#include <cstdint>

namespace rotunda::sm90::ptx {

/// The shared address of a pointer to shared memory.
__device__ __forceinline__ std::uint32_t shared_address(const void* pointer) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(pointer));
}

__device__ __forceinline__ void mbarrier_init(std::uint32_t barrier, std::uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

/// After all mbarrier_init of a CTA, before others and the copy engine see the barriers.
__device__ __forceinline__ void fence_mbarrier_init() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ __forceinline__ void mbarrier_arrive(std::uint32_t barrier, std::uint32_t count = 1) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}

/// One arrival, and the phase waits for `bytes` more bytes of bulk copies.
__device__ __forceinline__ void mbarrier_arrive_expect(std::uint32_t barrier, std::uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

/// Arrives at the same barrier of CTA `rank` of the cluster. Orders nothing that this thread wrote before (a release at
/// cluster scope is a fence of the whole device): for slabs that were only read, by wgmma that has been waited for.
__device__ __forceinline__ void mbarrier_arrive_remote(std::uint32_t barrier, std::uint32_t rank,
                                                       std::uint32_t count = 1) {
  asm volatile(
      "{\n"
      ".reg .b32 remote;\n"
      "mapa.shared::cluster.u32 remote, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [remote], %2;\n"
      "}" ::"r"(barrier),
      "r"(rank), "r"(count)
      : "memory");
}

__device__ __forceinline__ void mbarrier_wait(std::uint32_t barrier, std::uint32_t parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@done bra end;\n"
      "bra again;\n"
      "end:\n"
      "}" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

}  // namespace rotunda::sm90::ptx
