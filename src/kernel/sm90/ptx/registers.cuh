// Registers: shares of warpgroups, 16-bit pairs, exponentials, and fragments to shared memory.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

namespace rotunda::sm90::ptx {

/// The warpgroup gets (inc) or keeps (dec) kCount registers a thread, of the CTA's threads × registers at launch.
template <int kCount>
__device__ __forceinline__ void setmaxnreg_inc() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kCount));
}
template <int kCount>
__device__ __forceinline__ void setmaxnreg_dec() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kCount));
}

/// Tells the compiler that a value is the same in all lanes of the warp.
__device__ __forceinline__ int uniform(int value) {
  return __shfl_sync(0xffffffffU, value, 0);
}

/// True in one lane of a whole warp, always the same one. The compiler knows that it is one, and needs no loop over
/// lanes for the copies that this lane starts.
__device__ __forceinline__ bool elect_lane() {
  std::uint32_t elected;
  asm volatile(
      "{\n"
      ".reg .pred here;\n"
      "elect.sync _|here, 0xffffffff;\n"
      "selp.u32 %0, 1, 0, here;\n"
      "}"
      : "=r"(elected));
  return elected != 0;
}

/// Two floats rounded to T, `low` in the lower half.
template <class T>
__device__ __forceinline__ std::uint32_t pack(float low, float high) {
  std::uint32_t pair;
  if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  } else {
    static_assert(std::is_same_v<T, __half>);
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  }
  return pair;
}

/// 2^x to 2 units in the last place; results below 2^-126 are 0.
__device__ __forceinline__ float exp2_approximate(float x) {
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}

/// Four 8 × 8 matrices of 16 bits, whose rows begin at the addresses of lanes 0-7, 8-15, 16-23, 24-31.
__device__ __forceinline__ void store_matrices(std::uint32_t row, const std::uint32_t (&m)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(row), "r"(m[0]), "r"(m[1]),
               "r"(m[2]), "r"(m[3])
               : "memory");
}

/// Four bytes at a shared address.
__device__ __forceinline__ int load_shared(std::uint32_t from) {
  int value;
  asm volatile("ld.shared.s32 %0, [%1];" : "=r"(value) : "r"(from) : "memory");
  return value;
}
__device__ __forceinline__ void store_shared(std::uint32_t to, int value) {
  asm volatile("st.shared.s32 [%0], %1;" ::"r"(to), "r"(value) : "memory");
}

/// Two floats to a shared address.
__device__ __forceinline__ void store_shared(std::uint32_t to, float2 pair) {
  asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(to), "f"(pair.x), "f"(pair.y) : "memory");
}

/// Sixteen bytes of zeros to a shared address.
__device__ __forceinline__ void store_zeros(std::uint32_t to) {
  asm volatile("st.shared.v4.u32 [%0], {%1, %1, %1, %1};" ::"r"(to), "r"(0) : "memory");
}

/// What this thread wrote to shared memory comes before bulk copies and wgmma of threads that it signals afterwards.
__device__ __forceinline__ void fence_async_proxy() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

}  // namespace rotunda::sm90::ptx
