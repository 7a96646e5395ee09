#include "kernel/cpu/cpu_kernel.hpp"
#include "kernel/kernel.hpp"
#include "kernel/reference/reference_kernel.hpp"

namespace rotunda {

const std::vector<const Kernel*>& kernels() {
  static const std::vector<const Kernel*> all = [] {
    std::vector<const Kernel*> list = cuda_kernels();
    list.insert(list.end(), {&cpu_kernel(), &reference_kernel()});
    return list;
  }();
  return all;
}

std::vector<AbsentKernel> absent_kernels() {
  std::vector<AbsentKernel> list = {
      {"cudnn", "not in this build: needs CUDA and cuDNN 9.19 or later"},
      {"fa4", "not in this build: needs CUDA and kernels exported by tools/fa4: configure with -DROTUNDA_FA4=ON"},
      {"sm90", "not in this build: needs CUDA and a Hopper GPU"},
      {"mma", "not in this build: needs CUDA"},
  };
  std::erase_if(list, [](const AbsentKernel& each) { return find_kernel(each.name, Device::Kind::cuda) != nullptr; });
  return list;
}

const Kernel* find_kernel(const std::string& name, Device::Kind kind) {
  for (const Kernel* kernel : kernels()) {
    if (kernel->name() == name && kernel->capabilities().device == kind) return kernel;
  }
  return nullptr;
}

}  // namespace rotunda
