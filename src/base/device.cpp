#include "rotunda/device.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <fstream>
#include <new>
#include <utility>

#include "base/cuda_device.hpp"
#include "base/fail.hpp"
#include "base/memory.hpp"

namespace rotunda {

const char* to_string(Device::Kind kind) noexcept {
  return kind == Device::Kind::cuda ? "cuda" : "cpu";
}

std::string to_string(const Device& device) {
  return device.is_cuda() ? fmt::format("cuda:{}", device.index) : "cpu";
}

int cuda_device_count() {
  return cuda::device_count();
}

std::string why_no_cuda() {
  return cuda::why_none();
}

std::string describe(const Device& device) {
  if (device.is_cuda()) return cuda::describe(device.index);
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("model name")) return line.substr(std::min(line.size(), line.find(':') + 2));
  }
  return "unknown";
}

DeviceMemory::DeviceMemory(const Device& device, std::int64_t bytes) : device_(device), bytes_(bytes) {
  if (bytes == 0) return;
  if (device.is_cuda()) {
    data_ = cuda::allocate(device.index, bytes);
    return;
  }
  try {
    data_ = static_cast<std::byte*>(::operator new (static_cast<std::size_t>(bytes), std::align_val_t{kAlignment}));
  } catch (const std::bad_alloc&) {
    fail(ErrorKind::device, "no memory for {} bytes on the host", bytes);
  }
}

DeviceMemory::~DeviceMemory() {
  if (data_ == nullptr) return;
  if (device_.is_cuda()) {
    cuda::release(device_.index, data_);
  } else {
    ::operator delete (data_, std::align_val_t{kAlignment});
  }
}

DeviceMemory::DeviceMemory(DeviceMemory&& other) noexcept
    : device_(other.device_), data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}

DeviceMemory& DeviceMemory::operator=(DeviceMemory&& other) noexcept {
  std::swap(device_, other.device_);
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

OwnedStream::OwnedStream(const Device& device) : device_(device) {
  if (device.is_cuda()) stream_ = cuda::make_stream(device.index);
}

OwnedStream::~OwnedStream() {
  if (stream_.handle != nullptr) cuda::destroy_stream(device_.index, stream_);
}

OwnedStream::OwnedStream(OwnedStream&& other) noexcept
    : device_(other.device_), stream_(std::exchange(other.stream_, Stream{})) {}

OwnedStream& OwnedStream::operator=(OwnedStream&& other) noexcept {
  std::swap(device_, other.device_);
  std::swap(stream_, other.stream_);
  return *this;
}

struct Moment::Impl {
  std::chrono::steady_clock::time_point now = std::chrono::steady_clock::now();
  void* event = nullptr;
};

Moment::Moment(const Device& device, Stream stream) : impl_(std::make_unique<Impl>()) {
  if (device.is_cuda()) impl_->event = cuda::record_event(device.index, stream);
}

Moment::~Moment() {
  if (impl_ != nullptr && impl_->event != nullptr) cuda::destroy_event(impl_->event);
}

Moment::Moment(Moment&& other) noexcept = default;

Moment& Moment::operator=(Moment&& other) noexcept {
  std::swap(impl_, other.impl_);
  return *this;
}

double Moment::seconds_after(const Moment& earlier) const {
  if (impl_->event != nullptr) return cuda::seconds_between(earlier.impl_->event, impl_->event);
  return std::chrono::duration<double>(impl_->now - earlier.impl_->now).count();
}

void copy_bytes(void* to, const void* from, std::int64_t bytes, const Device& device, Stream stream) {
  if (bytes == 0) return;
  if (device.is_cuda()) return cuda::copy_bytes(to, from, bytes, device.index, stream);
  std::memcpy(to, from, static_cast<std::size_t>(bytes));
}

void set_bytes(void* to, unsigned char value, std::int64_t bytes, const Device& device, Stream stream) {
  if (bytes == 0) return;
  if (device.is_cuda()) return cuda::set_bytes(to, value, bytes, device.index, stream);
  std::memset(to, value, static_cast<std::size_t>(bytes));
}

bool is_reachable(const void* data, const Device& device) {
  return !device.is_cuda() || cuda::is_reachable(data, device.index);
}

void synchronize(const Device& device, Stream stream) {
  if (device.is_cuda()) cuda::synchronize(device.index, stream);
}

}  // namespace rotunda
