// Division by a number that is known at launch.
#pragma once

#include <cstdint>

namespace rotunda::cuda {

template <class Index>
class Divider;

/// n / d for n < 2^31 and 1 <= d < 2^31 with one multiplication: (Granlund and Montgomery, Division by Invariant
/// Integers using Multiplication, 1994): with 2^shift >= d and m = floor(2^32·(2^shift - d) / d) + 1,
/// n / d = (high(m·n) + n) >> shift.
template <>
class Divider<std::uint32_t> {
 public:
  Divider() = default;
  explicit Divider(std::int64_t divisor) : divisor_(static_cast<std::uint32_t>(divisor)) {
    while ((std::uint64_t{1} << shift_) < divisor_) ++shift_;
    const std::uint64_t rest = (std::uint64_t{1} << shift_) - divisor_;
    multiplier_ = static_cast<std::uint32_t>((rest << 32) / divisor_ + 1);
  }
  __device__ std::uint32_t quotient(std::uint32_t n) const { return (__umulhi(multiplier_, n) + n) >> shift_; }
  __device__ std::uint32_t divisor() const { return divisor_; }

 private:
  std::uint32_t divisor_ = 1, multiplier_ = 1, shift_ = 0;
};

/// n / d for 0 <= n, 1 <= d: real 64-bit division, which costs ten times as much, only where n or d needs it. Numbers
/// of rows and of vectors hardly ever do, whatever the offsets in elements.
template <>
class Divider<std::int64_t> {
 public:
  Divider() = default;
  explicit Divider(std::int64_t divisor) : divisor_(divisor), small_(divisor < kSmall ? divisor : 1) {}
  __device__ std::int64_t quotient(std::int64_t n) const {
    if (n < kSmall && divisor_ < kSmall) return small_.quotient(static_cast<std::uint32_t>(n));
    return n / divisor_;
  }
  __device__ std::int64_t divisor() const { return divisor_; }

 private:
  static constexpr std::int64_t kSmall = std::int64_t{1} << 31;
  std::int64_t divisor_ = 1;
  Divider<std::uint32_t> small_;
};

}  // namespace rotunda::cuda
