// The kernels of device_problem.hpp.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cmath>

#include "base/cuda/check.hpp"
#include "gpu/device_values.hpp"

namespace rotunda::testing {
namespace {

constexpr int kThreads = 256;
constexpr int kBlocks = 1024;

__device__ std::int64_t offset_of(const TensorView& view, std::int64_t n) {
  std::int64_t offset = 0;
  for (int axis = 3; axis >= 0; --axis) {
    offset += n % view.shape[axis] * view.stride[axis];
    n /= view.shape[axis];
  }
  return offset;
}

__device__ float read(const TensorView& view, std::int64_t offset) {
  if (view.dtype == DType::fp32) return static_cast<const float*>(view.data)[offset];
  const std::uint16_t bits = static_cast<const std::uint16_t*>(view.data)[offset];
  if (view.dtype == DType::bf16) return __uint_as_float(static_cast<unsigned>(bits) << 16);
  return __half2float(__ushort_as_half(bits));
}

__device__ void write(const TensorView& view, std::int64_t offset, float value) {
  if (view.dtype == DType::fp32) {
    static_cast<float*>(view.data)[offset] = value;
  } else if (view.dtype == DType::bf16) {
    static_cast<std::uint16_t*>(view.data)[offset] = __bfloat16_as_ushort(__float2bfloat16_rn(value));
  } else {
    static_cast<std::uint16_t*>(view.data)[offset] = __half_as_ushort(__float2half_rn(value));
  }
}

__device__ std::uint64_t splitmix(std::uint64_t x) {
  x += 0x9E3779B97F4A7C15U;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9U;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBU;
  return x ^ (x >> 31);
}

__global__ void fill_kernel(TensorView view, std::uint64_t key, std::int64_t count) {
  for (std::int64_t n = std::int64_t{blockIdx.x} * kThreads + threadIdx.x; n < count; n += std::int64_t{gridDim.x} * kThreads) {
    std::uint64_t bits = splitmix(key + static_cast<std::uint64_t>(n));
    int sum = 0;
    for (; bits != 0; bits >>= 8) sum += static_cast<int>(bits & 0xff);
    write(view, offset_of(view, n), static_cast<float>((sum - 1020) / 209.0));
  }
}

__global__ void nan_kernel(TensorView view, std::int64_t count) {
  for (std::int64_t n = std::int64_t{blockIdx.x} * kThreads + threadIdx.x; n < count; n += std::int64_t{gridDim.x} * kThreads) {
    write(view, offset_of(view, n), __int_as_float(0x7fffffff));
  }
}

__global__ void compare_kernel(TensorView got, TensorView exact, std::int64_t count, unsigned* most,
                               unsigned long long* misplaced) {
  for (std::int64_t n = std::int64_t{blockIdx.x} * kThreads + threadIdx.x; n < count; n += std::int64_t{gridDim.x} * kThreads) {
    const float a = read(got, offset_of(got, n));
    const float b = read(exact, offset_of(exact, n));
    if (isfinite(b) && isfinite(a)) {
      atomicMax(most, __float_as_uint(fabsf(a - b)));  // of numbers >= 0, bits are in the order of values
    } else if (!(a == b)) {
      atomicAdd(misplaced, 1ULL);
    }
  }
}

__global__ void bits_kernel(TensorView a, TensorView b, std::int64_t count, unsigned long long* differing) {
  for (std::int64_t n = std::int64_t{blockIdx.x} * kThreads + threadIdx.x; n < count; n += std::int64_t{gridDim.x} * kThreads) {
    const std::int64_t i = offset_of(a, n), j = offset_of(b, n);
    const bool same = a.dtype == DType::fp32
                          ? static_cast<const std::uint32_t*>(a.data)[i] == static_cast<const std::uint32_t*>(b.data)[j]
                          : static_cast<const std::uint16_t*>(a.data)[i] == static_cast<const std::uint16_t*>(b.data)[j];
    if (!same) atomicAdd(differing, 1ULL);
  }
}

}  // namespace

void launch_fill(const TensorView& view, std::uint64_t key) {
  fill_kernel<<<kBlocks, kThreads>>>(view, key, view.elements());
  cuda::check_launch("fill_kernel");
}

void launch_nan(const TensorView& view) {
  nan_kernel<<<kBlocks, kThreads>>>(view, view.elements());
  cuda::check_launch("nan_kernel");
}

void launch_compare(const TensorView& got, const TensorView& exact, unsigned* most, unsigned long long* misplaced) {
  compare_kernel<<<kBlocks, kThreads>>>(got, exact, got.elements(), most, misplaced);
  cuda::check_launch("compare_kernel");
}

void launch_bits(const TensorView& a, const TensorView& b, unsigned long long* differing) {
  bits_kernel<<<kBlocks, kThreads>>>(a, b, a.elements(), differing);
  cuda::check_launch("bits_kernel");
}

}  // namespace rotunda::testing
