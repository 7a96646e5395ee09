// The kernels that run on CUDA devices, in order of preference.
#include "kernel/kernel.hpp"
#include "kernel/reference/cuda/cuda_reference_kernel.hpp"

namespace rotunda {

std::vector<const Kernel*> cuda_kernels() {
  return {&cuda_reference_kernel()};
}

}  // namespace rotunda
