// Warpgroup matrix products (wgmma): D[64 × N] += A[64 × 16] · B[16 × N], A and B in shared memory, D in fp32
// registers.
//
// Thread t of the warpgroup, with warp w, group g = t % 32 / 4 and place q = t % 4, holds in d[4·i .. 4·i + 3] of rows
// 16·w + g and 16·w + g + 8 the columns 8·i + 2·q and the next: (g, +0), (g, +1), (g + 8, +0), (g + 8, +1).
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

namespace rotunda::sm90::ptx {

/// Before the first wgmma that uses registers which other instructions wrote.
__device__ __forceinline__ void wgmma_fence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
/// Closes a group of wgmma; groups end in order.
__device__ __forceinline__ void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
/// Until at most kPending groups are not done.
template <int kPending>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

/// Keeps reads of accumulators behind a wait.
template <int kCount>
__device__ __forceinline__ void pin(float (&d)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

/// Keeps the compiler from making what depends on a value early, all at once, and for good: 64 descriptors, say.
__device__ __forceinline__ void forget(std::uint32_t& value) {
  asm volatile("" : "+r"(value));
}

/// The operand at a shared address in atoms of 8 rows × 128 bytes, swizzled by 128 bytes, each 1024-byte aligned.
/// K-major (rows are m or n, 64 elements of k wide): `stride` bytes from 8 rows to the next 8; `lead` is not used.
/// MN-major (rows are k, 64 elements of m or n wide): `lead` bytes to the next 64 of m or n, `stride` to the next 8 of
/// k. Sixteen elements of k further: + 32 bytes in a K-major atom, + 2 · stride in MN-major ones, as `offset` / 16.
__device__ __forceinline__ std::uint64_t descriptor(std::uint32_t address, std::uint32_t lead, std::uint32_t stride) {
  constexpr std::uint64_t kSwizzle128 = std::uint64_t{1} << 62;
  return std::uint64_t{(address & 0x3ffffU) >> 4} | std::uint64_t{lead >> 4} << 16 | std::uint64_t{stride >> 4} << 32 |
         kSwizzle128;
}

enum class Major { k, mn };  ///< which axis of an operand is contiguous

// clang-format off
#define ROTUNDA_OUT_8(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), \
  "+f"(d[i + 6]), "+f"(d[i + 7])
#define ROTUNDA_OUT_32(i) ROTUNDA_OUT_8(i), ROTUNDA_OUT_8(i + 8), ROTUNDA_OUT_8(i + 16), ROTUNDA_OUT_8(i + 24)
#define ROTUNDA_OUT_48 ROTUNDA_OUT_32(0), ROTUNDA_OUT_8(32), ROTUNDA_OUT_8(40)
#define ROTUNDA_OUT_64 ROTUNDA_OUT_32(0), ROTUNDA_OUT_32(32)
#define ROTUNDA_OUT_72 ROTUNDA_OUT_64, ROTUNDA_OUT_8(64)
#define ROTUNDA_OUT_80 ROTUNDA_OUT_64, ROTUNDA_OUT_8(64), ROTUNDA_OUT_8(72)
#define ROTUNDA_OUT_96 ROTUNDA_OUT_64, ROTUNDA_OUT_32(64)
#define ROTUNDA_OUT_112 ROTUNDA_OUT_96, ROTUNDA_OUT_8(96), ROTUNDA_OUT_8(104)
#define ROTUNDA_OUT_128 ROTUNDA_OUT_96, ROTUNDA_OUT_32(96)
#define ROTUNDA_REGISTERS_48 \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, " \
  "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define ROTUNDA_REGISTERS_64 ROTUNDA_REGISTERS_48 \
  ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define ROTUNDA_REGISTERS_72 ROTUNDA_REGISTERS_64 ", %64, %65, %66, %67, %68, %69, %70, %71"
#define ROTUNDA_REGISTERS_80 ROTUNDA_REGISTERS_64 \
  ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79"
#define ROTUNDA_REGISTERS_96 ROTUNDA_REGISTERS_80 \
  ", %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define ROTUNDA_REGISTERS_112 ROTUNDA_REGISTERS_96 \
  ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111"
#define ROTUNDA_REGISTERS_128 ROTUNDA_REGISTERS_112 \
  ", %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
// clang-format on

// The instruction; operands behind the registers: a, b, whether to add, and the transpositions.
#define ROTUNDA_WGMMA(registers, n, type, a, b, add, ta, tb)                                                       \
  asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, %" #add ", 0;\nwgmma.mma_async.sync.aligned.m64n" #n          \
               "k16.f32." type "." type " {" ROTUNDA_REGISTERS_##registers "}, %" #a ", %" #b ", add, 1, 1, %" #ta \
                                                                           ", %" #tb ";\n}"                        \
               : ROTUNDA_OUT_##registers                                                                           \
               : "l"(descriptor_a), "l"(descriptor_b), "r"(add_to_d), "n"(kTransposeA), "n"(kTransposeB))

#define ROTUNDA_WGMMA_OF(type)                                           \
  if constexpr (kColumns == 96) {                                        \
    ROTUNDA_WGMMA(48, 96, type, 48, 49, 50, 51, 52);                     \
  } else if constexpr (kColumns == 128) {                                \
    ROTUNDA_WGMMA(64, 128, type, 64, 65, 66, 67, 68);                    \
  } else if constexpr (kColumns == 144) {                                \
    ROTUNDA_WGMMA(72, 144, type, 72, 73, 74, 75, 76);                    \
  } else if constexpr (kColumns == 160) {                                \
    ROTUNDA_WGMMA(80, 160, type, 80, 81, 82, 83, 84);                    \
  } else if constexpr (kColumns == 192) {                                \
    ROTUNDA_WGMMA(96, 192, type, 96, 97, 98, 99, 100);                   \
  } else if constexpr (kColumns == 224) {                                \
    ROTUNDA_WGMMA(112, 224, type, 112, 113, 114, 115, 116);              \
  } else {                                                               \
    static_assert(kColumns == 256, "m64nNk16 is here for some N alone"); \
    ROTUNDA_WGMMA(128, 256, type, 128, 129, 130, 131, 132);              \
  }

/// D = A·B, added to what D holds where add_to_d is not 0. Runs on until waited for.
template <class T, int kColumns, Major kMajorA, Major kMajorB>
__device__ __forceinline__ void wgmma(float (&d)[kColumns / 2], std::uint64_t descriptor_a, std::uint64_t descriptor_b,
                                      int add_to_d) {
  constexpr int kTransposeA = kMajorA == Major::mn ? 1 : 0, kTransposeB = kMajorB == Major::mn ? 1 : 0;
  if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    ROTUNDA_WGMMA_OF("bf16")
  } else {
    static_assert(std::is_same_v<T, __half>);
    ROTUNDA_WGMMA_OF("f16")
  }
}

// With A in registers.
#define ROTUNDA_WGMMA_A(registers, n, type, a0, a1, a2, a3, b, add, tb)                                              \
  asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, %" #add ", 0;\nwgmma.mma_async.sync.aligned.m64n" #n            \
               "k16.f32." type "." type " {" ROTUNDA_REGISTERS_##registers "}, {%" #a0 ", %" #a1 ", %" #a2 ", %" #a3 \
                                                                           "}, %" #b ", add, 1, 1, %" #tb ";\n}"     \
               : ROTUNDA_OUT_##registers                                                                             \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(descriptor_b), "r"(add_to_d), "n"(kTransposeB))

#define ROTUNDA_WGMMA_A_OF(type)                                         \
  if constexpr (kColumns == 96) {                                        \
    ROTUNDA_WGMMA_A(48, 96, type, 48, 49, 50, 51, 52, 53, 54);           \
  } else if constexpr (kColumns == 128) {                                \
    ROTUNDA_WGMMA_A(64, 128, type, 64, 65, 66, 67, 68, 69, 70);          \
  } else if constexpr (kColumns == 160) {                                \
    ROTUNDA_WGMMA_A(80, 160, type, 80, 81, 82, 83, 84, 85, 86);          \
  } else {                                                               \
    static_assert(kColumns == 192, "m64nNk16 is here for some N alone"); \
    ROTUNDA_WGMMA_A(96, 192, type, 96, 97, 98, 99, 100, 101, 102);       \
  }

/// Likewise with A in registers, which stay as they are until the product is done. Thread t holds in a[i] of row
/// 16·w + g + 8·(i % 2) the columns 2·q + 8·(i / 2) and the next: two columns of D's layout, packed.
template <class T, int kColumns, Major kMajorB>
__device__ __forceinline__ void wgmma(float (&d)[kColumns / 2], const std::uint32_t (&a)[4], std::uint64_t descriptor_b,
                                      int add_to_d) {
  constexpr int kTransposeB = kMajorB == Major::mn ? 1 : 0;
  if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    ROTUNDA_WGMMA_A_OF("bf16")
  } else {
    static_assert(std::is_same_v<T, __half>);
    ROTUNDA_WGMMA_A_OF("f16")
  }
}

#undef ROTUNDA_WGMMA_A_OF
#undef ROTUNDA_WGMMA_A
#undef ROTUNDA_WGMMA_OF
#undef ROTUNDA_WGMMA
#undef ROTUNDA_REGISTERS_128
#undef ROTUNDA_REGISTERS_112
#undef ROTUNDA_REGISTERS_96
#undef ROTUNDA_REGISTERS_80
#undef ROTUNDA_REGISTERS_72
#undef ROTUNDA_REGISTERS_64
#undef ROTUNDA_REGISTERS_48
#undef ROTUNDA_OUT_128
#undef ROTUNDA_OUT_112
#undef ROTUNDA_OUT_96
#undef ROTUNDA_OUT_80
#undef ROTUNDA_OUT_72
#undef ROTUNDA_OUT_64
#undef ROTUNDA_OUT_48
#undef ROTUNDA_OUT_32
#undef ROTUNDA_OUT_8

}  // namespace rotunda::sm90::ptx
