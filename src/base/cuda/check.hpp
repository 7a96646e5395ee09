// CUDA calls that fail become errors; the current device is set for a scope.
#pragma once

#include <cuda_runtime_api.h>

#include "base/fail.hpp"
#include "rotunda/device.hpp"

namespace rotunda::cuda {

/// Throws for `result`, which is not success. @throws Error device, such as "cudaMemcpyAsync(…) failed: an illegal
/// memory access was encountered (700)"
[[noreturn]] void throw_error(cudaError_t result, const char* call);

inline void check(cudaError_t result, const char* call) {
  if (result != cudaSuccess) throw_error(result, call);
}

/// Checks a call.
#define ROTUNDA_CUDA(call) ::rotunda::cuda::check(call, #call)

/// After a kernel launch. @throws Error device
void check_launch(const char* kernel);

[[nodiscard]] inline cudaStream_t native(Stream stream) {
  return static_cast<cudaStream_t>(stream.handle);
}

/// Makes a device current for a scope.
class CurrentDevice {
 public:
  explicit CurrentDevice(int device) {
    ROTUNDA_CUDA(cudaGetDevice(&before_));
    if (before_ != device) ROTUNDA_CUDA(cudaSetDevice(device));
    changed_ = before_ != device;
  }
  ~CurrentDevice() {
    if (changed_) (void)cudaSetDevice(before_);
  }
  CurrentDevice(const CurrentDevice&) = delete;
  CurrentDevice& operator=(const CurrentDevice&) = delete;

 private:
  int before_ = 0;
  bool changed_ = false;
};

}  // namespace rotunda::cuda
