#include "base/cuda/copy_elements.hpp"

#include "base/cuda/check.hpp"
#include "base/cuda_device.hpp"

namespace rotunda::cuda {
namespace {

constexpr int kThreads = 256;
// Enough to fill a device; more would only wait. A peer's memory needs no more than this to saturate the link.
constexpr std::int64_t kMostBlocks = 2048;

template <class T>
__global__ void __launch_bounds__(kThreads) copy_kernel(const T* from, T* to, Loops loops, std::int64_t count) {
  for (std::int64_t n = std::int64_t{blockIdx.x} * kThreads + threadIdx.x; n < count;
       n += std::int64_t{gridDim.x} * kThreads) {
    std::int64_t rest = n, source = 0, target = 0;
#pragma unroll
    for (int axis = 3; axis >= 0; --axis) {
      const std::int64_t i = rest % loops[axis].extent;
      rest /= loops[axis].extent;
      source += i * loops[axis].from;
      target += i * loops[axis].to;
    }
    to[target] = from[source];
  }
}

template <class T>
void launch(const TensorView& from, const TensorView& to, const Loops& loops, Stream stream) {
  const std::int64_t count = to.elements();
  const auto blocks = static_cast<unsigned>(std::min(kMostBlocks, (count + kThreads - 1) / kThreads));
  copy_kernel<<<blocks, kThreads, 0, native(stream)>>>(static_cast<const T*>(from.data), static_cast<T*>(to.data),
                                                       loops, count);
  check_launch("copy_elements");
}

}  // namespace

void copy_elements(const TensorView& from, const TensorView& to, const Loops& loops, Stream stream) {
  if (size_of(to.dtype) == 4) {
    launch<std::uint32_t>(from, to, loops, stream);
  } else {
    launch<std::uint16_t>(from, to, loops, stream);
  }
}

/// All code is compiled for the same devices but what declines others itself: any kernel stands for all.
bool is_built_for(int device) {
  const CurrentDevice current(device);
  cudaFuncAttributes attributes;
  const bool found = cudaFuncGetAttributes(&attributes, copy_kernel<std::uint16_t>) == cudaSuccess;
  if (!found) (void)cudaGetLastError();
  return found;
}

}  // namespace rotunda::cuda
