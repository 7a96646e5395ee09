#include <memory>

#include "base/cuda/check.hpp"
#include "base/cuda/event.hpp"
#include "base/cuda_device.hpp"
#include "base/fail.hpp"

namespace rotunda::cuda {
namespace {

constexpr double kGiB = 1024.0 * 1024.0 * 1024.0;

/// The runtime is asked once: a machine without a driver answers slowly.
struct Found {
  int count = 0;
  std::string why;

  Found() {
    const cudaError_t result = cudaGetDeviceCount(&count);
    if (result == cudaSuccess && count > 0) return;
    (void)cudaGetLastError();
    count = 0;
    why = result == cudaSuccess ? "no CUDA device is visible"
                                : fmt::format("no CUDA device can be used: {}", cudaGetErrorString(result));
  }
};

const Found& found() {
  static const Found once;
  return once;
}

}  // namespace

int device_count() {
  return found().count;
}

std::string why_none() {
  return found().why;
}

std::string describe(int device) {
  cudaDeviceProp properties{};
  ROTUNDA_CUDA(cudaGetDeviceProperties(&properties, device));
  return fmt::format("{}, compute capability {}.{}, {} multiprocessors, {:.1f} GiB", properties.name, properties.major,
                     properties.minor, properties.multiProcessorCount,
                     static_cast<double>(properties.totalGlobalMem) / kGiB);
}

std::byte* allocate(int device, std::int64_t bytes) {
  const CurrentDevice current(device);
  void* data = nullptr;
  const cudaError_t result = cudaMalloc(&data, static_cast<std::size_t>(bytes));
  if (result == cudaSuccess) return static_cast<std::byte*>(data);
  (void)cudaGetLastError();
  std::size_t free = 0, total = 0;
  (void)cudaMemGetInfo(&free, &total);
  fail(ErrorKind::device, "no memory for {:.2f} GiB on device cuda:{}: {:.2f} of {:.2f} GiB are free ({})",
       static_cast<double>(bytes) / kGiB, device, static_cast<double>(free) / kGiB, static_cast<double>(total) / kGiB,
       cudaGetErrorString(result));
}

void release(int, std::byte* data) noexcept {
  (void)cudaFree(data);
}

Stream make_stream(int device) {
  const CurrentDevice current(device);
  cudaStream_t stream = nullptr;
  ROTUNDA_CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  return {stream};
}

void destroy_stream(int, Stream stream) noexcept {
  (void)cudaStreamDestroy(native(stream));
}

void copy_bytes(void* to, const void* from, std::int64_t bytes, int device, Stream stream) {
  const CurrentDevice current(device);
  ROTUNDA_CUDA(cudaMemcpyAsync(to, from, static_cast<std::size_t>(bytes), cudaMemcpyDefault, native(stream)));
}

void set_bytes(void* to, unsigned char value, std::int64_t bytes, int device, Stream stream) {
  const CurrentDevice current(device);
  ROTUNDA_CUDA(cudaMemsetAsync(to, value, static_cast<std::size_t>(bytes), native(stream)));
}

void* record_event(int device, Stream stream) {
  auto event = std::make_unique<Event>(device, Event::Use::timing);
  event->record(stream);
  return event.release();
}

void destroy_event(void* event) noexcept {
  delete static_cast<Event*>(event);
}

double seconds_between(void* from, void* to) {
  return static_cast<Event*>(to)->seconds_after(*static_cast<Event*>(from));
}

bool is_reachable(const void* data, int) {
  cudaPointerAttributes attributes{};
  if (cudaPointerGetAttributes(&attributes, data) != cudaSuccess) {
    (void)cudaGetLastError();
    return false;
  }
  return attributes.type != cudaMemoryTypeUnregistered;
}

void synchronize(int device, Stream stream) {
  const CurrentDevice current(device);
  ROTUNDA_CUDA(cudaStreamSynchronize(native(stream)));
}

}  // namespace rotunda::cuda
