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

const Kernel* find_kernel(const std::string& name, Device::Kind kind) {
  for (const Kernel* kernel : kernels()) {
    if (kernel->name() == name && kernel->capabilities().device == kind) return kernel;
  }
  return nullptr;
}

}  // namespace rotunda
