// The instructions of SM80 that C++ has no words for.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

namespace rotunda::mma {

[[nodiscard]] __device__ inline std::uint32_t shared_address(const void* at) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(at));
}

/// threadIdx.x, read anew: what is computed from it is not kept in registers from one use to the next.
[[nodiscard]] __device__ inline int fresh_thread() {
  int thread;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
  return thread;
}

/// Copies 16 bytes from global to shared memory in the background; writes zeros where not `valid`.
__device__ inline void copy_async(std::uint32_t to, const void* from, bool valid) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(valid ? 16 : 0) : "memory");
}
/// What this thread has begun to copy since the last call becomes a group.
__device__ inline void close_group() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
/// Until at most `kOpen` of this thread's groups, the youngest, are still on their way.
template <int kOpen>
__device__ void wait_for_groups() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kOpen) : "memory");
}

/// Waits for the other threads that share a barrier; `threads` of them in all. Barrier 0 is __syncthreads'.
__device__ inline void wait_at_barrier(int barrier, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

/// Four blocks of 8 × 8 elements. Lane l gives the address of row l % 8 of block l / 8, and gets of each block the
/// elements 2·(l % 4), + 1 of row l / 4.
__device__ inline void load_blocks(std::uint32_t (&to)[4], std::uint32_t from) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(from)
               : "memory");
}
/// Two of them; the addresses of lanes 16 to 31 count for nothing.
__device__ inline void load_blocks(std::uint32_t (&to)[2], std::uint32_t from) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
               : "=r"(to[0]), "=r"(to[1])
               : "r"(from)
               : "memory");
}
/// Four blocks, each transposed.
__device__ inline void load_blocks_transposed(std::uint32_t (&to)[4], std::uint32_t from) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(from)
               : "memory");
}

/// sum += a·b for 16 × 16 and 16 × 8 matrices (the columns of b lie in a row of memory). Of the sum a lane holds
/// rows l / 4 (elements 0, 1) and l / 4 + 8 (2, 3), columns 2·(l % 4), + 1.
template <class T>
__device__ void multiply(float (&sum)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1) {
  if constexpr (std::is_same_v<T, __half>) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
}

/// 2^x to 2 ulp; results too small for a normal number are 0.
[[nodiscard]] __device__ inline float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/// Two neighbours in a register, the first in the low half.
template <class T>
[[nodiscard]] __device__ std::uint32_t pack(float low, float high) {
  if constexpr (std::is_same_v<T, __half>) {
    const __half2 both = __floats2half2_rn(low, high);
    return *reinterpret_cast<const std::uint32_t*>(&both);
  } else {
    const __nv_bfloat162 both = __floats2bfloat162_rn(low, high);
    return *reinterpret_cast<const std::uint32_t*>(&both);
  }
}

template <class T>
[[nodiscard]] __device__ float2 unpack(std::uint32_t both) {
  if constexpr (std::is_same_v<T, __half>) {
    return __half22float2(*reinterpret_cast<const __half2*>(&both));
  } else {
    return {__uint_as_float(both << 16), __uint_as_float(both & 0xffff0000U)};
  }
}

}  // namespace rotunda::mma
