#include <algorithm>
#include <cstddef>

#include "base/cuda/check.hpp"
#include "kernel/cudnn/write_ints.hpp"

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

}  // namespace rotunda::cudnn
