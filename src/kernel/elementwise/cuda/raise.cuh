// Maxima over threads of a device.
#pragma once

namespace rotunda::cuda {

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
