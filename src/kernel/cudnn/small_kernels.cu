#include <algorithm>
#include <cstddef>

#include "base/cuda/check.hpp"
#include "kernel/cudnn/small_kernels.hpp"

namespace rotunda::cudnn {
namespace {

constexpr int kMost = 960;  // with the pointer and count, within the 4 KiB of parameters that every device takes

struct Values {
  int count;
  int value[kMost];
};

__global__ void write(int* to, const __grid_constant__ Values values) {
  for (int i = static_cast<int>(threadIdx.x); i < values.count; i += static_cast<int>(blockDim.x)) {
    to[i] = values.value[i];
  }
}

__global__ void clear(float* values, std::int64_t count) {
  const std::int64_t step = std::int64_t{gridDim.x} * blockDim.x;
  for (std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step) {
    if (isinf(values[i])) values[i] = 0;
  }
}

}  // namespace

void write_ints(int* to, std::span<const int> values, Stream stream) {
  for (std::size_t begin = 0; begin < values.size(); begin += kMost) {
    Values part;
    part.count = static_cast<int>(std::min<std::size_t>(kMost, values.size() - begin));
    std::copy_n(values.begin() + static_cast<std::ptrdiff_t>(begin), part.count, part.value);
    write<<<1, 256, 0, cuda::native(stream)>>>(to + begin, part);
    cuda::check_launch("write_ints");
  }
}

void clear_infinities(float* values, std::int64_t count, Stream stream) {
  if (count == 0) return;
  constexpr int kThreads = 256;
  constexpr std::int64_t kMostBlocks = 1024;
  const auto blocks = static_cast<unsigned>(std::min((count + kThreads - 1) / kThreads, kMostBlocks));
  clear<<<blocks, kThreads, 0, cuda::native(stream)>>>(values, count);
  cuda::check_launch("clear_infinities");
}

}  // namespace rotunda::cudnn
