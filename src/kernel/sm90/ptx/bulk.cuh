// Bulk copies of contiguous bytes between global and shared memory. Addresses and sizes are multiples of 16.
#pragma once

#include <cstdint>

namespace rotunda::sm90::ptx {

/// To shared memory; the barrier counts the bytes.
__device__ __forceinline__ void bulk_load(std::uint32_t to, const void* from, std::uint32_t bytes,
                                          std::uint32_t barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
               "l"(__cvta_generic_to_global(from)), "r"(bytes), "r"(barrier)
               : "memory");
}

/// To the same shared address of every CTA in `mask`; the same barrier of each counts the bytes.
__device__ __forceinline__ void bulk_load_multicast(std::uint32_t to, const void* from, std::uint32_t bytes,
                                                    std::uint32_t barrier, std::uint16_t mask) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1], %2, [%3], "
      "%4;" ::"r"(to),
      "l"(__cvta_generic_to_global(from)), "r"(bytes), "r"(barrier), "h"(mask)
      : "memory");
}

/// To global memory, in the calling thread's open group.
__device__ __forceinline__ void bulk_store(void* to, std::uint32_t from, std::uint32_t bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(__cvta_generic_to_global(to)),
               "r"(from), "r"(bytes)
               : "memory");
}
/// Closes the thread's group of stores; groups end in order.
__device__ __forceinline__ void bulk_commit() {
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
/// Until at most kPending of the thread's groups have shared memory to read.
template <int kPending>
__device__ __forceinline__ void bulk_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kPending) : "memory");
}
/// Until at most kPending of the thread's groups have bytes to write.
template <int kPending>
__device__ __forceinline__ void bulk_wait() {
  asm volatile("cp.async.bulk.wait_group %0;" ::"n"(kPending) : "memory");
}

}  // namespace rotunda::sm90::ptx
