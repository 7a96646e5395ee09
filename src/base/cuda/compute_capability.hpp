// What a CUDA device can execute.
#pragma once

#include <fmt/format.h>

#include <compare>
#include <string>

#include "base/cuda/check.hpp"

namespace rotunda::cuda {

struct ComputeCapability {
  int major = 0, minor = 0;

  auto operator<=>(const ComputeCapability&) const = default;
};

/// @throws Error device where there is no such device
[[nodiscard]] inline ComputeCapability compute_capability(int device) {
  ComputeCapability found;
  ROTUNDA_CUDA(cudaDeviceGetAttribute(&found.major, cudaDevAttrComputeCapabilityMajor, device));
  ROTUNDA_CUDA(cudaDeviceGetAttribute(&found.minor, cudaDevAttrComputeCapabilityMinor, device));
  return found;
}

/// "9.0"
[[nodiscard]] inline std::string to_string(const ComputeCapability& capability) {
  return fmt::format("{}.{}", capability.major, capability.minor);
}

}  // namespace rotunda::cuda
