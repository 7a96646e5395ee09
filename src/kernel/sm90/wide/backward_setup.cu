// Before the chunks: their lists go to the device, and rows that no slice has get their zeros.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstring>

#include "base/cuda/check.hpp"
#include "kernel/sm90/wide/backward_launch.hpp"

namespace rotunda::sm90::wide {
namespace {

/// A launch's arguments may be 32,764 bytes.
constexpr std::size_t kLargeParcel = 2032, kSmallParcel = 240;

template <std::size_t kCount>
struct Parcel {
  uint4* to;
  unsigned count;
  uint4 data[kCount];
};

template <std::size_t kCount>
__global__ void unpack_kernel(const __grid_constant__ Parcel<kCount> parcel) {
  const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < parcel.count) parcel.to[i] = parcel.data[i];
}

template <std::size_t kCount>
void send(std::span<const std::byte> bytes, std::byte* to, Stream stream) {
  Parcel<kCount> parcel;
  parcel.to = reinterpret_cast<uint4*>(to);
  parcel.count = static_cast<unsigned>((bytes.size() + sizeof(uint4) - 1) / sizeof(uint4));
  std::memcpy(parcel.data, bytes.data(), bytes.size());
  constexpr unsigned kThreads = 128;
  unpack_kernel<kCount><<<(parcel.count + kThreads - 1) / kThreads, kThreads, 0, cuda::native(stream)>>>(parcel);
  cuda::check_launch("unpack_kernel");
}

template <class T>
__global__ void zero_kernel(const RowSpan* rows, std::int64_t count, DeviceRows to, int heads, int dim) {
  for (std::int64_t n = blockIdx.y; n < count; n += gridDim.y) {
    const RowSpan span = rows[n];
    for (std::int64_t i = blockIdx.x; i < span.len * heads; i += gridDim.x) {
      T* row = to.at<T>(span.batch, span.begin + i / heads, i % heads);
      for (int c = static_cast<int>(threadIdx.x); c < dim; c += static_cast<int>(blockDim.x)) row[c] = T{};
    }
  }
}

}  // namespace

void upload(std::span<const std::byte> bytes, std::byte* to, Stream stream) {
  while (!bytes.empty()) {
    constexpr std::size_t kLarge = kLargeParcel * sizeof(uint4), kSmall = kSmallParcel * sizeof(uint4);
    const std::size_t count = std::min(bytes.size(), kLarge);
    if (count <= kSmall) {
      send<kSmallParcel>(bytes.first(count), to, stream);
    } else {
      send<kLargeParcel>(bytes.first(count), to, stream);
    }
    bytes = bytes.subspan(count);
    to += count;
  }
}

void zero_rows(const RowSpan* rows, std::int64_t count, const TensorView& gradient, Stream stream) {
  if (count == 0 || gradient.empty()) return;
  constexpr unsigned kThreads = 128;
  const dim3 grid(64, static_cast<unsigned>(std::min<std::int64_t>(count, 1024)));
  const auto heads = static_cast<int>(gradient.heads()), dim = static_cast<int>(gradient.dim());
  const auto kernel = gradient.dtype == DType::fp32 ? zero_kernel<std::uint32_t> : zero_kernel<std::uint16_t>;
  kernel<<<grid, kThreads, 0, cuda::native(stream)>>>(rows, count, DeviceRows(gradient), heads, dim);
  cuda::check_launch("zero_kernel");
}

}  // namespace rotunda::sm90::wide
