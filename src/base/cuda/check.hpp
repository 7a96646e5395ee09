// CUDA calls that fail become errors; the current device is set for a scope.
#pragma once

#include <cuda_runtime_api.h>

#include "base/fail.hpp"
#include "rotunda/device.hpp"

namespace rotunda::cuda {

/// @throws Error device: "cudaMemcpyAsync failed: an illegal memory access was encountered (700)"
inline void check(cudaError_t result, const char* call) {
  if (result == cudaSuccess) return;
  fail(ErrorKind::device, "{} failed: {} ({})", call, cudaGetErrorString(result), static_cast<int>(result));
}

/// Checks a call, naming it up to its parenthesis.
#define ROTUNDA_CUDA(call) ::rotunda::cuda::check(call, #call)

/// After a kernel launch.
inline void check_launch(const char* kernel) {
  const cudaError_t result = cudaPeekAtLastError();
  if (result == cudaSuccess) return;
  (void)cudaGetLastError();
  fail(ErrorKind::device, "kernel {} could not be launched: {} ({})", kernel, cudaGetErrorString(result),
       static_cast<int>(result));
}

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
