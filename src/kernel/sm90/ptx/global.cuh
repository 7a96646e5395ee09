// Loads and stores of global memory under a condition that is one comparison, without branches.
#pragma once

#include <cstdint>

namespace rotunda::sm90::ptx {

/// The pair at `from` where kAt < limit, else zeros.
template <int kAt>
__device__ __forceinline__ float2 load_below(int limit, const float* from) {
  float2 pair;
  asm volatile(
      "{\n"
      ".reg .pred below;\n"
      "setp.gt.s32 below, %3, %4;\n"
      "mov.b32 %0, 0;\n"
      "mov.b32 %1, 0;\n"
      "@below ld.global.v2.f32 {%0, %1}, [%2];\n"
      "}"
      : "=&f"(pair.x), "=&f"(pair.y)
      : "l"(from), "r"(limit), "n"(kAt)
      : "memory");
  return pair;
}

/// Where kAt < limit.
template <int kAt>
__device__ __forceinline__ void store_below(int limit, float* to, float2 pair) {
  asm volatile(
      "{\n"
      ".reg .pred below;\n"
      "setp.gt.s32 below, %3, %4;\n"
      "@below st.global.v2.f32 [%0], {%1, %2};\n"
      "}" ::"l"(to),
      "f"(pair.x), "f"(pair.y), "r"(limit), "n"(kAt)
      : "memory");
}
template <int kAt>
__device__ __forceinline__ void store_below(int limit, void* to, const std::uint32_t (&x)[4]) {
  asm volatile(
      "{\n"
      ".reg .pred below;\n"
      "setp.gt.s32 below, %5, %6;\n"
      "@below st.global.v4.b32 [%0], {%1, %2, %3, %4};\n"
      "}" ::"l"(to),
      "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "r"(limit), "n"(kAt)
      : "memory");
}

/// Adds a pair to what lies there, in L2: nothing comes back and nothing waits. With one adder an address the sum is
/// that of a load, an addition and a store.
__device__ __forceinline__ void add_global(float* to, float2 pair) {
  asm volatile("red.relaxed.gpu.global.add.v2.f32 [%0], {%1, %2};" ::"l"(to), "f"(pair.x), "f"(pair.y) : "memory");
}

}  // namespace rotunda::sm90::ptx
