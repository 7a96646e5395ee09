// kernel in a build without CUDA.
#include "base/fail.hpp"
#include "kernel/elementwise/elementwise.hpp"
#include "kernel/kernel.hpp"

namespace rotunda {

std::vector<const Kernel*> cuda_kernels() {
  return {};
}

std::unique_ptr<Elementwise> cuda_elementwise(const Device&, Stream) {
  fail(ErrorKind::unsupported, "{}", why_no_cuda());
}

}  // namespace rotunda
