#include "base/half.hpp"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <type_traits>

#include "rotunda/tensor.hpp"

namespace rotunda {
namespace {

template <class Half>
Half from_bits(std::uint32_t bits) {
  Half half;
  half.bits = static_cast<std::uint16_t>(bits);
  return half;
}

/// Value of a pattern from its fields: independent of the conversion under test.
double value_of(std::uint32_t bits, int exponent_bits, int mantissa_bits) {
  const int sign = (bits >> 15) != 0 ? -1 : 1;
  const int exponent = static_cast<int>(bits >> mantissa_bits) & ((1 << exponent_bits) - 1);
  const int mantissa = static_cast<int>(bits) & ((1 << mantissa_bits) - 1);
  const int bias = (1 << (exponent_bits - 1)) - 1;
  if (exponent == (1 << exponent_bits) - 1) return mantissa != 0 ? NAN : sign * std::numeric_limits<double>::infinity();
  const int whole = exponent == 0 ? mantissa : mantissa + (1 << mantissa_bits);
  return sign * std::ldexp(whole, std::max(exponent, 1) - bias - mantissa_bits);
}

template <class Half>
void check_all_patterns(int exponent_bits, int mantissa_bits) {
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    const auto wide = static_cast<float>(from_bits<Half>(bits));
    const double want = value_of(bits, exponent_bits, mantissa_bits);
    if (std::isnan(want)) {
      ASSERT_TRUE(std::isnan(wide)) << bits;
      ASSERT_TRUE(std::isnan(static_cast<float>(Half(wide)))) << bits;
      ASSERT_EQ(Half(wide).bits >> 15, bits >> 15) << bits;
    } else {
      ASSERT_EQ(static_cast<double>(wide), want) << bits;
      ASSERT_EQ(Half(wide).bits, bits) << bits;
    }
  }
}

TEST(Half, EveryPatternWidensExactlyAndComesBack) {
  check_all_patterns<bf16_t>(8, 7);
  check_all_patterns<fp16_t>(5, 10);
}

/// Between each two neighbouring finite values: a quarter, the middle and three quarters of the way, both signs.
template <class Half>
void check_rounding(std::uint32_t infinity) {
  for (std::uint32_t low = 0; low + 1 < infinity; ++low) {
    const auto a = static_cast<double>(static_cast<float>(from_bits<Half>(low)));
    const auto b = static_cast<double>(static_cast<float>(from_bits<Half>(low + 1)));
    for (const std::uint32_t sign : {0U, 0x8000U}) {
      const double s = sign != 0 ? -1 : 1;
      ASSERT_EQ(Half(static_cast<float>(s * (a + (b - a) / 4))).bits, sign | low);
      ASSERT_EQ(Half(static_cast<float>(s * (a + (b - a) / 2))).bits, sign | (low % 2 == 0 ? low : low + 1)) << low;
      ASSERT_EQ(Half(static_cast<float>(s * (a + (b - a) * 3 / 4))).bits, sign | (low + 1));
    }
  }
}

TEST(Half, RoundsToNearestTiesToEven) {
  check_rounding<bf16_t>(0x7f80);
  check_rounding<fp16_t>(0x7c00);
}

TEST(Half, NextToATieGoesToTheNearer) {
  const float tie = 1.0F + 0x1p-11F;  // between fp16's 1 and 1 + 2^-10
  EXPECT_EQ(fp16_t(tie).bits, 0x3c00);
  EXPECT_EQ(fp16_t(std::nextafter(tie, 2.0F)).bits, 0x3c01);
  EXPECT_EQ(fp16_t(std::nextafter(0x1p-25F, 1.0F)).bits, 1);  // just above half the least subnormal
  EXPECT_EQ(fp16_t(0x1p-25F).bits, 0);
  EXPECT_EQ(bf16_t(std::nextafter(1.0F + 0x1p-8F, 2.0F)).bits, 0x3f81);
  EXPECT_EQ(bf16_t(std::nextafter(1.0F + 0x1p-8F, 0.0F)).bits, 0x3f80);
}

TEST(Half, OverflowIsInfinityAndUnderflowZero) {
  EXPECT_EQ(fp16_t(65504.0F).bits, 0x7bff);
  EXPECT_EQ(fp16_t(std::nextafter(65520.0F, 0.0F)).bits, 0x7bff);
  EXPECT_EQ(fp16_t(65520.0F).bits, 0x7c00);
  EXPECT_EQ(fp16_t(-1e30F).bits, 0xfc00);
  EXPECT_EQ(bf16_t(std::numeric_limits<float>::max()).bits, 0x7f80);
  EXPECT_EQ(bf16_t(-std::numeric_limits<float>::infinity()).bits, 0xff80);
  EXPECT_EQ(fp16_t(1e-30F).bits, 0);
  EXPECT_EQ(fp16_t(-1e-30F).bits, 0x8000);
  EXPECT_EQ(bf16_t(-0.0F).bits, 0x8000);
}

TEST(Half, NanStaysNanWhateverItsPayload) {
  for (const std::uint32_t bits : {0x7f800001U, 0x7fc00000U, 0x7fffffffU, 0xff800001U, 0xffffffffU, 0x7f80ffffU}) {
    const auto nan = std::bit_cast<float>(bits);
    EXPECT_TRUE(std::isnan(static_cast<float>(bf16_t(nan)))) << bits;
    EXPECT_TRUE(std::isnan(static_cast<float>(fp16_t(nan)))) << bits;
  }
}

TEST(Half, DispatchesOnTheDtype) {
  const auto size = [](DType dtype) { return dispatch_dtype(dtype, [](auto element) { return sizeof(element); }); };
  const auto bf16 = [](DType dtype) {
    return dispatch_dtype(dtype, [](auto element) { return std::is_same_v<decltype(element), bf16_t>; });
  };
  for (const DType dtype : {DType::bf16, DType::fp16, DType::fp32}) EXPECT_EQ(size(dtype), size_of(dtype));
  EXPECT_TRUE(bf16(DType::bf16));
  EXPECT_FALSE(bf16(DType::fp16));
}

}  // namespace
}  // namespace rotunda
