// 16-bit floats as storage: exact widening, narrowing rounded to nearest even. NaN stays NaN, overflow is infinity.
#pragma once

#include <bit>
#include <cstdint>

namespace rotunda {

struct bf16_t {
  std::uint16_t bits = 0;

  bf16_t() = default;
  explicit bf16_t(float value) {
    const auto wide = std::bit_cast<std::uint32_t>(value);
    const bool nan = (wide & 0x7fffffffU) > 0x7f800000U;
    const std::uint32_t rounded = (wide + 0x7fffU + ((wide >> 16) & 1U)) >> 16;
    bits = static_cast<std::uint16_t>(nan ? (wide >> 16) | 0x40U : rounded);
  }
  explicit operator float() const { return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16); }
};

struct fp16_t {
  std::uint16_t bits = 0;

  fp16_t() = default;
  explicit fp16_t(float value) {
    const auto wide = std::bit_cast<std::uint32_t>(value);
    const std::uint32_t sign = (wide >> 16) & 0x8000U;
    const std::uint32_t magnitude = wide & 0x7fffffffU;
    std::uint32_t half = 0;
    if (magnitude > 0x7f800000U) {
      half = 0x7e00U;  // NaN
    } else if (magnitude >= 0x477ff000U) {
      half = 0x7c00U;  // 65520 and above round to infinity
    } else if (magnitude >= 0x38800000U) {
      const std::uint32_t rebased = magnitude - 0x38000000U;  // exponent bias 127 to 15
      half = (rebased + 0xfffU + ((rebased >> 13) & 1U)) >> 13;
    } else {
      // Subnormal: adding 0.5 leaves the value's multiple of 2^-24 in the low bits, rounded by the hardware.
      const float shifted = std::bit_cast<float>(magnitude) + 0.5F;
      half = std::bit_cast<std::uint32_t>(shifted) - 0x3f000000U;
    }
    bits = static_cast<std::uint16_t>(sign | half);
  }
  explicit operator float() const {
    const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000U) << 16;
    const std::uint32_t magnitude = bits & 0x7fffU;
    if (magnitude >= 0x7c00U) return std::bit_cast<float>(sign | 0x7f800000U | (magnitude & 0x3ffU) << 13);
    // Scaling by 2^112 rebases the exponent and normalises subnormals, exactly.
    const float value = std::bit_cast<float>(magnitude << 13) * 0x1p112F;
    return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(value));
  }
};

/// Calls body with a value of the element type that `dtype` names: dispatch(dtype, [&](auto e) { using T = decltype(e);
/// … }).
template <class Body>
decltype(auto) dispatch_dtype(auto dtype, Body&& body) {
  using D = decltype(dtype);
  switch (dtype) {
    case D::bf16: return body(bf16_t{});
    case D::fp16: return body(fp16_t{});
    case D::fp32: break;
  }
  return body(float{});
}

}  // namespace rotunda
