#include "base/cuda/check.hpp"

#include "base/fail.hpp"

namespace rotunda::cuda {

void throw_error(cudaError_t result, const char* call) {
  fail(ErrorKind::device, "{} failed: {} ({})", call, cudaGetErrorString(result), static_cast<int>(result));
}

void check_launch(const char* kernel) {
  const cudaError_t result = cudaGetLastError();
  if (result == cudaSuccess) return;
  fail(ErrorKind::device, "kernel {} could not be launched: {} ({})", kernel, cudaGetErrorString(result),
       static_cast<int>(result));
}

}  // namespace rotunda::cuda
