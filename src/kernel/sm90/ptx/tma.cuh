// Bulk copies of boxes of tensors to shared memory (TMA). tensor_map.hpp makes the maps.
//
// One thread starts a copy; the barrier counts its bytes. Coordinates are in elements, fastest axis first; what lies
// outside the tensor arrives as 0 and counts as bytes too. A multicast copy writes to the same shared address of every
// CTA in `mask` and counts at the same barrier of each.
#pragma once

#include <cuda.h>

#include <cstdint>

namespace rotunda::sm90::ptx {

struct Box4 {
  int x, y, z, w;
};
struct Box5 {
  int x, y, z, w, v;
};

__device__ __forceinline__ void tma_load(std::uint32_t to, const CUtensorMap* map, std::uint32_t barrier, Box4 at) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6}], "
      "[%2];" ::"r"(to),
      "l"(map), "r"(barrier), "r"(at.x), "r"(at.y), "r"(at.z), "r"(at.w)
      : "memory");
}

__device__ __forceinline__ void tma_load(std::uint32_t to, const CUtensorMap* map, std::uint32_t barrier, Box5 at) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6, %7}], "
      "[%2];" ::"r"(to),
      "l"(map), "r"(barrier), "r"(at.x), "r"(at.y), "r"(at.z), "r"(at.w), "r"(at.v)
      : "memory");
}

__device__ __forceinline__ void tma_load_multicast(std::uint32_t to, const CUtensorMap* map, std::uint32_t barrier,
                                                   std::uint16_t mask, Box4 at) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], "
      "[%1, {%4, %5, %6, %7}], [%2], %3;" ::"r"(to),
      "l"(map), "r"(barrier), "h"(mask), "r"(at.x), "r"(at.y), "r"(at.z), "r"(at.w)
      : "memory");
}

__device__ __forceinline__ void tma_load_multicast(std::uint32_t to, const CUtensorMap* map, std::uint32_t barrier,
                                                   std::uint16_t mask, Box5 at) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], "
      "[%1, {%4, %5, %6, %7, %8}], [%2], %3;" ::"r"(to),
      "l"(map), "r"(barrier), "h"(mask), "r"(at.x), "r"(at.y), "r"(at.z), "r"(at.w), "r"(at.v)
      : "memory");
}

/// From shared memory, in the calling thread's open group (bulk.cuh); what lies outside the tensor is not written.
__device__ __forceinline__ void tma_store(const CUtensorMap* map, Box4 at, std::uint32_t from) {
  asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.tile.bulk_group [%0, {%2, %3, %4, %5}], [%1];" ::"l"(map),
               "r"(from), "r"(at.x), "r"(at.y), "r"(at.z), "r"(at.w)
               : "memory");
}
/// Likewise; fp32 elements are added to what is there, in L2.
__device__ __forceinline__ void tma_add(const CUtensorMap* map, Box4 at, std::uint32_t from) {
  asm volatile(
      "cp.reduce.async.bulk.tensor.4d.global.shared::cta.add.tile.bulk_group [%0, {%2, %3, %4, %5}], [%1];" ::"l"(map),
      "r"(from), "r"(at.x), "r"(at.y), "r"(at.z), "r"(at.w)
      : "memory");
}

/// Brings a map to the copy engine's cache.
__device__ __forceinline__ void tma_prefetch_map(const CUtensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

/// Brings a box to L2.
__device__ __forceinline__ void tma_prefetch(const CUtensorMap* map, Box4 at) {
  asm volatile("cp.async.bulk.prefetch.tensor.4d.L2.global.tile [%0, {%1, %2, %3, %4}];" ::"l"(map), "r"(at.x),
               "r"(at.y), "r"(at.z), "r"(at.w)
               : "memory");
}
__device__ __forceinline__ void tma_prefetch(const CUtensorMap* map, Box5 at) {
  asm volatile("cp.async.bulk.prefetch.tensor.5d.L2.global.tile [%0, {%1, %2, %3, %4, %5}];" ::"l"(map), "r"(at.x),
               "r"(at.y), "r"(at.z), "r"(at.w), "r"(at.v)
               : "memory");
}

}  // namespace rotunda::sm90::ptx
