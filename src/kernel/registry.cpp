#include "kernel/cpu/cpu_kernel.hpp"
#include "kernel/kernel.hpp"
#include "kernel/reference/reference_kernel.hpp"

namespace rotunda {

const std::vector<const Kernel*>& kernels() {
  static const std::vector<const Kernel*> all{&cpu_kernel(), &reference_kernel()};
  return all;
}

const Kernel* find_kernel(const std::string& name) {
  for (const Kernel* kernel : kernels()) {
    if (kernel->name() == name) return kernel;
  }
  return nullptr;
}

}  // namespace rotunda
