// Tensors in a CUDA device's memory whose values are nearly normal: zeros would draw less power.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/cuda/check.hpp"
#include "base/cuda/vectors.cuh"
#include "rotunda/device.hpp"
#include "rotunda/tensor.hpp"

namespace rotunda {

constexpr int kFillThreads = 256;

__device__ inline std::uint64_t mix(std::uint64_t z) {
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9U;
  z = (z ^ z >> 27) * 0x94d049bb133111ebU;
  return z ^ z >> 31;
}

/// Sums of eight bytes.
template <class T>
__global__ void fill_normal(T* to, std::int64_t count, std::uint64_t seed) {
  const std::int64_t n = std::int64_t{blockIdx.x} * kFillThreads + threadIdx.x;
  if (n >= count) return;
  std::uint64_t bits = mix(static_cast<std::uint64_t>(n) * 0x9e3779b97f4a7c15U + seed);
  int sum = 0;
  for (; bits != 0; bits >>= 8) sum += static_cast<int>(bits & 0xff);
  to[n] = T(static_cast<float>(sum - 1020) / 209.0F);
}

/// Dense in the order of its layout; no two are alike.
class RandomTensor {
 public:
  RandomTensor(const Device& device, DType dtype, Layout layout, std::int64_t batch, std::int64_t rows,
               std::int64_t heads, std::int64_t dim)
      : memory_(device, std::max<std::int64_t>(
                            1, batch * rows * heads * dim * static_cast<std::int64_t>(size_of(dtype)))),
        view_(make_view(memory_.data(), dtype, layout, batch, rows, heads, dim)) {
    static std::uint64_t seed = 1;
    seed = seed * 6364136223846793005U + 1;
    const std::int64_t count = view_.elements();
    if (count == 0) return;
    const cuda::CurrentDevice current(device.index);
    cuda::dispatch_device(dtype, [&](auto element) {
      using T = decltype(element);
      fill_normal<<<static_cast<unsigned>((count + kFillThreads - 1) / kFillThreads), kFillThreads>>>(
          reinterpret_cast<T*>(memory_.data()), count, seed);
    });
    cuda::check_launch("fill_normal");
    synchronize(device, {});
  }
  [[nodiscard]] const TensorView& view() const { return view_; }

 private:
  DeviceMemory memory_;
  TensorView view_;
};

}  // namespace rotunda
