// What kernels on CUDA devices share to keep the contract of kernel.hpp.
#pragma once

#include <cstdint>

namespace rotunda::cuda {

/// A band's edge; beyond 2^61 it is as good as no bound, and sums with positions don't overflow.
[[nodiscard]] __device__ inline std::int64_t clamp_edge(std::int64_t edge) {
  constexpr std::int64_t kFar = std::int64_t{1} << 61;
  return edge > kFar ? kFar : edge < -kFar ? -kFar : edge;
}

/// Raises a float to a value: the order of floats is that of their bits as integers, turned round where negative.
__device__ inline void raise(float* to, float value) {
  value += 0.0F;  // -0 becomes 0
  if (value >= 0) {
    atomicMax(reinterpret_cast<int*>(to), __float_as_int(value));
  } else {
    atomicMin(reinterpret_cast<unsigned*>(to), __float_as_uint(value));
  }
}

}  // namespace rotunda::cuda
