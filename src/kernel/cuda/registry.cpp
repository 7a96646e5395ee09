#ifdef ROTUNDA_WITH_CUDNN
#include "kernel/cudnn/cudnn_kernel.hpp"
#endif
#include "kernel/kernel.hpp"

namespace rotunda {

std::vector<const Kernel*> cuda_kernels() {
  std::vector<const Kernel*> list;
#ifdef ROTUNDA_WITH_CUDNN
  list.push_back(&cudnn_kernel());
#endif
  return list;
}

}  // namespace rotunda
