// Elements on the device: conversions, and loads and stores of several at once.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "base/fail.hpp"
#include "rotunda/tensor.hpp"

namespace rotunda::cuda {

__device__ inline float widen(float value) {
  return value;
}
__device__ inline float widen(__nv_bfloat16 value) {
  return __bfloat162float(value);
}
__device__ inline float widen(__half value) {
  return __half2float(value);
}

/// Rounded to nearest even, as base/half.hpp does.
template <class T>
__device__ T narrow(float value) {
  if constexpr (sizeof(T) == 4) {
    return value;
  } else if constexpr (std::is_same_v<T, __half>) {
    return __float2half_rn(value);
  } else {
    return __float2bfloat16_rn(value);
  }
}

/// Elements of a vector where these types meet: 16 bytes of the widest. More would make a warp's access to that one
/// skip every other 16 bytes, and so move each sector of 32 twice.
template <class... T>
inline constexpr int kVectorOf = static_cast<int>(16 / std::max({sizeof(T)...}));

/// N elements that lie side by side.
template <class T, int N>
struct alignas(N * sizeof(T) < 16 ? N * sizeof(T) : 16) Vector {
  T at[N];
};

/// 16 bytes at a time; 8 where a vector is no larger. `from` is aligned to that.
template <int N, class T>
__device__ Vector<T, N> load_vector(const T* from) {
  using Word = std::conditional_t<N * sizeof(T) % 16 == 0, uint4, uint2>;
  Vector<T, N> result;
  if constexpr (N * sizeof(T) % sizeof(Word) == 0) {
    constexpr int kWords = N * sizeof(T) / sizeof(Word);
    Word words[kWords];
#pragma unroll
    for (int i = 0; i < kWords; ++i) words[i] = reinterpret_cast<const Word*>(from)[i];
    memcpy(result.at, words, sizeof words);  // in registers
  } else {
#pragma unroll
    for (int i = 0; i < N; ++i) result.at[i] = from[i];
  }
  return result;
}

template <int N, class T>
__device__ void store_vector(const Vector<T, N>& from, T* to) {
  using Word = std::conditional_t<N * sizeof(T) % 16 == 0, uint4, uint2>;
  if constexpr (N * sizeof(T) % sizeof(Word) == 0) {
    constexpr int kWords = N * sizeof(T) / sizeof(Word);
    Word words[kWords];
    memcpy(words, from.at, sizeof words);
#pragma unroll
    for (int i = 0; i < kWords; ++i) reinterpret_cast<Word*>(to)[i] = words[i];
  } else {
#pragma unroll
    for (int i = 0; i < N; ++i) to[i] = from.at[i];
  }
}

/// Calls body with an element of the device's type for `dtype`.
template <class Body>
void dispatch_device(DType dtype, Body&& body) {
  switch (dtype) {
    case DType::bf16: return body(__nv_bfloat16{});
    case DType::fp16: return body(__half{});
    case DType::fp32: break;
  }
  return body(float{});
}

/// Calls body with a std::uint32_t or a std::int64_t: the type to count offsets with.
template <class Body>
void dispatch_width(bool narrow, Body&& body) {
  if (narrow) return body(std::uint32_t{});
  return body(std::int64_t{});
}

/// Whether a view can be read and written `count` elements at a time: neighbours lie side by side, and every vector is
/// aligned to its 16 bytes (or its own size where that is less).
[[nodiscard]] inline bool takes_vectors(const TensorView& view, int count) {
  const auto size = static_cast<std::int64_t>(size_of(view.dtype));
  const std::int64_t alignment = count * size < 16 ? count * size : 16;
  bool fits = view.stride[3] == 1 && view.shape[3] % count == 0;
  fits = fits && reinterpret_cast<std::uintptr_t>(view.data) % static_cast<std::uintptr_t>(alignment) == 0;
  for (std::size_t axis = 0; axis < 3; ++axis) {
    if (view.shape[axis] > 1) fits = fits && view.stride[axis] * size % alignment == 0;
  }
  return fits;
}

}  // namespace rotunda::cuda
