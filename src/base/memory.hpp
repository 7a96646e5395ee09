// Aligned host memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>

namespace rotunda {

inline constexpr std::size_t kAlignment = 64;  // a cache line, and the widest SIMD register

/// Uninitialised bytes, 64-byte aligned. Movable, frees itself.
class HostBuffer {
 public:
  HostBuffer() = default;
  explicit HostBuffer(std::int64_t bytes)
      : data_(bytes == 0 ? nullptr
                         : static_cast<std::byte*>(
                               ::operator new (static_cast<std::size_t>(bytes), std::align_val_t{kAlignment}))),
        bytes_(bytes) {}

  [[nodiscard]] std::byte* data() const { return data_.get(); }
  [[nodiscard]] std::int64_t bytes() const { return bytes_; }

 private:
  struct Free {
    void operator()(std::byte* p) const { ::operator delete (p, std::align_val_t{kAlignment}); }
  };
  std::unique_ptr<std::byte, Free> data_;
  std::int64_t bytes_ = 0;
};

/// The next multiple of kAlignment.
[[nodiscard]] constexpr std::int64_t aligned(std::int64_t bytes) {
  constexpr auto alignment = static_cast<std::int64_t>(kAlignment);
  return (bytes + alignment - 1) / alignment * alignment;
}

}  // namespace rotunda
