// Attention on any device of compute capability 8.0 or later, with the tensor cores' mma.sync: docs/kernels/mma.md.
#pragma once

#include "kernel/kernel.hpp"

namespace rotunda {

[[nodiscard]] const Kernel& mma_kernel();

}  // namespace rotunda
