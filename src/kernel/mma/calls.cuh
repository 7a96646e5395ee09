// What the kernels are told: plain structs that are copied to the device with a launch.
#pragma once

#include <cstdint>

#include "base/fail.hpp"
#include "base/cuda/vectors.cuh"
#include "kernel/kernel.hpp"

namespace rotunda::mma {

/// A TensorView on the device.
struct View {
  void* data = nullptr;
  DType dtype = DType::fp32;
  std::int64_t batch = 0, row = 0, head = 0;  ///< strides in elements
  bool vectors = false;                       ///< aligned as `vector` elements at a time need it

  View() = default;
  View(const TensorView& view, int vector)
      : data(view.data),
        dtype(view.dtype),
        batch(view.stride[0]),
        row(view.stride[1]),
        head(view.stride[2]),
        vectors(cuda::takes_vectors(view, vector)) {
    ROTUNDA_CHECK(view.data == nullptr || view.shape[3] <= 1 || view.stride[3] == 1);
  }
  template <class T>
  __device__ T* at(std::int64_t b, std::int64_t r, std::int64_t h) const {
    return static_cast<T*>(data) + b * batch + r * row + h * head;
  }
};

/// What all passes know: the slices, and where the block's tile of rows lies.
struct Walk {
  const Slice* slices = nullptr;
  int slice_count = 0;
  int rows = 0;  ///< of the buffer that tiles are cut from
  int tiles = 0, tile_rows = 0;
  int heads = 0;  ///< of that buffer
  bool one_buffer = false;
};

struct ForwardCall {
  Walk walk;
  View q, k, v, acc, lse, lse_low, out;
  int d = 0, d_v = 0;
  HeadMap map;
  float scale_log2 = 0;  ///< scale · log2 e
  double scale = 0;
  float* max_logit = nullptr;
  bool init = false, last = false;
};

struct BackwardCall {
  Walk walk;
  View q, k, v, dout, lse, delta, dq, dk, dv;
  int d = 0, d_v = 0, heads_q = 0;
  HeadMap map;
  float scale_log2 = 0, scale = 0;
  bool init = false;  ///< of the gradients that this pass makes
};

}  // namespace rotunda::mma
