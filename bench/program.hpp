// What the programs that time CUDA devices begin and end with.
#pragma once

#include <fmt/format.h>

#include <exception>

#include "rotunda/device.hpp"

namespace rotunda {

/// Runs body(argc, argv) where there is a device; what it throws, or why there is none, is told under the program's
/// name.
template <class Body>
int run_program(const char* name, int argc, char** argv, Body&& body) {
  try {
    if (cuda_device_count() > 0) return body(argc, argv);
    fmt::print(stderr, "{}: {}\n", name, why_no_cuda());
    return 3;
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}: {}\n", name, error.what());
    return 1;
  }
}

}  // namespace rotunda
