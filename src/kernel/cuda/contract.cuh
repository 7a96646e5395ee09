// What kernels on CUDA devices share to keep the contract of kernel.hpp.
#pragma once

#include <cstdint>

namespace rotunda::cuda {

/// A band's edge; beyond 2^61 it is as good as no bound, and sums with positions don't overflow.
[[nodiscard]] __device__ inline std::int64_t clamp_edge(std::int64_t edge) {
  constexpr std::int64_t kFar = std::int64_t{1} << 61;
  return edge > kFar ? kFar : edge < -kFar ? -kFar : edge;
}

/// The greater one, for max_logit. NaN stays (row_state.hpp).
template <class Real>
[[nodiscard]] __device__ Real greater(Real a, Real b) {
  return isnan(a) || a > b ? a : b;
}

/// Raises a float to a value: the order of floats is that of their bits as integers, turned round where negative. NaN
/// stays: its bits are the greatest signed integer, and as an unsigned one less than those of any negative float.
__device__ inline void raise(float* to, float value) {
  value += 0.0F;  // -0 becomes 0, and any NaN the device's own, 0x7fffffff
  if (value < 0) {
    atomicMin(reinterpret_cast<unsigned*>(to), __float_as_uint(value));
  } else {
    atomicMax(reinterpret_cast<int*>(to), __float_as_int(value));
  }
}

}  // namespace rotunda::cuda
