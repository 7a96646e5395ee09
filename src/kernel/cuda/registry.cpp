// The kernels that run on CUDA devices, in order of preference.
#include "kernel/kernel.hpp"
#include "kernel/reference/cuda/cuda_reference_kernel.hpp"
#include "kernel/sm90/sm90_kernel.hpp"
#ifdef ROTUNDA_WITH_CUDNN
#include "kernel/cudnn/cudnn_kernel.hpp"
#endif

namespace rotunda {

std::vector<const Kernel*> cuda_kernels() {
  std::vector<const Kernel*> list;
#ifdef ROTUNDA_WITH_CUDNN
  list.push_back(&cudnn_kernel());
#endif
  list.push_back(&sm90_kernel());
  list.push_back(&cuda_reference_kernel());
  return list;
}

}  // namespace rotunda
