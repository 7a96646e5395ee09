// What base needs of CUDA. Defined in base/cuda, or, in a build without CUDA, in base/without_cuda.cpp.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "rotunda/device.hpp"

namespace rotunda::cuda {

[[nodiscard]] int device_count();
[[nodiscard]] std::string why_none();
[[nodiscard]] std::string describe(int device);
/// Whether the build has code for the device.
[[nodiscard]] bool is_built_for(int device);
[[nodiscard]] std::byte* allocate(int device, std::int64_t bytes);
void release(int device, std::byte* data) noexcept;
[[nodiscard]] Stream make_stream(int device);
void destroy_stream(int device, Stream stream) noexcept;
void copy_bytes(void* to, const void* from, std::int64_t bytes, int device, Stream stream);
void set_bytes(void* to, unsigned char value, std::int64_t bytes, int device, Stream stream);
/// An Event (base/cuda/event.hpp) recorded on the stream.
[[nodiscard]] void* record_event(int device, Stream stream);
void destroy_event(void* event) noexcept;
[[nodiscard]] double seconds_between(void* from, void* to);
[[nodiscard]] bool is_reachable(const void* data, int device);
void synchronize(int device, Stream stream);

}  // namespace rotunda::cuda
