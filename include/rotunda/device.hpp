// Devices, their memory, and streams.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace rotunda {

/// Where tensors lie and steps run: the host's memory and threads, or a CUDA device.
struct Device {
  enum class Kind { cpu, cuda } kind = Kind::cpu;
  int index = 0;  ///< of a CUDA device, as the CUDA runtime counts them

  [[nodiscard]] bool is_cuda() const { return kind == Kind::cuda; }
  bool operator==(const Device&) const = default;
};

[[nodiscard]] inline Device cuda_device(int index) {
  return {Device::Kind::cuda, index};
}
/// "cpu", "cuda"
[[nodiscard]] const char* to_string(Device::Kind kind) noexcept;
/// "cpu", "cuda:0"
[[nodiscard]] std::string to_string(const Device& device);

/// A CUDA stream of the caller's (a cudaStream_t); null is the device's default stream. Means nothing on a CPU.
struct Stream {
  void* handle = nullptr;
};

/// CUDA devices that this process can use; 0 in a build without CUDA, and where the driver or a device is missing.
[[nodiscard]] int cuda_device_count();
/// Why there is none; empty where there is one.
[[nodiscard]] std::string why_no_cuda();
/// "NVIDIA H200, compute capability 9.0, 132 multiprocessors, 139.8 GiB"; of a CPU the name of its model
[[nodiscard]] std::string describe(const Device& device);

/// Memory of a device, uninitialised, aligned to 64 bytes (host) or 256 (CUDA). Movable, frees itself; a CUDA device
/// finishes its work first.
class DeviceMemory {
 public:
  DeviceMemory() = default;
  /// @throws Error device where there is too little, saying how much was asked for and is free
  DeviceMemory(const Device& device, std::int64_t bytes);
  ~DeviceMemory();
  DeviceMemory(DeviceMemory&& other) noexcept;
  DeviceMemory& operator=(DeviceMemory&& other) noexcept;
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;

  [[nodiscard]] std::byte* data() const { return data_; }
  [[nodiscard]] std::int64_t bytes() const { return bytes_; }
  [[nodiscard]] const Device& device() const { return device_; }

 private:
  Device device_;
  std::byte* data_ = nullptr;
  std::int64_t bytes_ = 0;
};

/// A stream of its own on a device, which does not wait for the default stream. Null on a CPU. Movable.
class OwnedStream {
 public:
  OwnedStream() = default;
  explicit OwnedStream(const Device& device);
  ~OwnedStream();
  OwnedStream(OwnedStream&& other) noexcept;
  OwnedStream& operator=(OwnedStream&& other) noexcept;
  OwnedStream(const OwnedStream&) = delete;
  OwnedStream& operator=(const OwnedStream&) = delete;

  [[nodiscard]] Stream get() const { return stream_; }

 private:
  Device device_;
  Stream stream_;
};

/// A moment in a stream's work, or on a CPU simply now.
class Moment {
 public:
  /// What the stream holds so far comes before it. @throws Error device
  Moment(const Device& device, Stream stream);
  ~Moment();
  Moment(Moment&& other) noexcept;
  Moment& operator=(Moment&& other) noexcept;
  Moment(const Moment&) = delete;
  Moment& operator=(const Moment&) = delete;

  /// Seconds from an earlier moment of the same device; waits until both have come.
  [[nodiscard]] double seconds_after(const Moment& earlier) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Copies bytes in stream order, between host and device memory either way or within. With host memory that is not
/// pinned it returns when the bytes have been read, and for copies to the host when they have arrived.
void copy_bytes(void* to, const void* from, std::int64_t bytes, const Device& device, Stream stream);
/// Sets every byte, in stream order.
void set_bytes(void* to, unsigned char value, std::int64_t bytes, const Device& device, Stream stream);
/// Whether kernels of the device may read memory at this address: its own, a peer's, managed or mapped memory.
[[nodiscard]] bool is_reachable(const void* data, const Device& device);
/// Returns when all work of the stream is done. @throws Error device with what failed on the device
void synchronize(const Device& device, Stream stream);

}  // namespace rotunda
