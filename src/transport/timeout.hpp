// Timeouts that clocks can count to.
#pragma once

#include <chrono>

#include "base/fail.hpp"

namespace rotunda {

/// @throws Error bad_input unless it is above 0 and at most ten years: a later end overflows the clock
inline void check_timeout(std::chrono::milliseconds timeout) {
  using namespace std::chrono_literals;
  if (timeout > 0ms && timeout <= 87'600h) return;
  fail(ErrorKind::bad_input, "a group's timeout is {} ms, allowed is above 0 and up to ten years", timeout.count());
}

}  // namespace rotunda
