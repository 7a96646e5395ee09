#include "rotunda/error.hpp"

#include <gtest/gtest.h>

#include "base/fail.hpp"
#include "base/memory.hpp"
#include "support/error_test.hpp"

namespace rotunda {
namespace {

TEST(Errors, ExitStatuses) {
  EXPECT_EQ(exit_status(ErrorKind::bad_input), 2);
  EXPECT_EQ(exit_status(ErrorKind::unsupported), 3);
  EXPECT_EQ(exit_status(ErrorKind::transport), 4);
  EXPECT_EQ(exit_status(ErrorKind::device), 5);
  EXPECT_EQ(exit_status(ErrorKind::internal), 70);
}

TEST(Errors, KindsHaveNames) {
  EXPECT_STREQ(to_string(ErrorKind::bad_input), "bad input");
  EXPECT_STREQ(to_string(ErrorKind::unsupported), "unsupported");
  EXPECT_STREQ(to_string(ErrorKind::transport), "transport");
  EXPECT_STREQ(to_string(ErrorKind::device), "device");
  EXPECT_STREQ(to_string(ErrorKind::internal), "internal");
}

TEST(Errors, FailFormats) {
  EXPECT_ERROR(fail(ErrorKind::device, "rank {} has {} bytes", 3, 17), ErrorKind::device, "rank 3 has 17 bytes");
}

TEST(Errors, ChecksSayWhatAndWhere) {
  const auto check = [](int value) { ROTUNDA_CHECK(value == 4); };
  EXPECT_NO_THROW(check(4));
  EXPECT_ERROR(check(5), ErrorKind::internal, "error_test.cpp");
  EXPECT_ERROR(check(5), ErrorKind::internal, "value == 4");
}

TEST(HostBuffer, IsAlignedAndMoves) {
  HostBuffer buffer(100);
  EXPECT_EQ(buffer.bytes(), 100);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(buffer.data()) % kAlignment, 0U);
  std::byte* const data = buffer.data();
  const HostBuffer moved = std::move(buffer);
  EXPECT_EQ(moved.data(), data);
  EXPECT_EQ(HostBuffer(0).data(), nullptr);
}

TEST(HostBuffer, SizesRoundUpToTheAlignment) {
  EXPECT_EQ(aligned(0), 0);
  EXPECT_EQ(aligned(1), 64);
  EXPECT_EQ(aligned(64), 64);
  EXPECT_EQ(aligned(65), 128);
}

}  // namespace
}  // namespace rotunda
