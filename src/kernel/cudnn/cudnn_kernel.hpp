// cuDNN's attention as a kernel, for slice lists that are few dense or ragged calls.
#pragma once

#include "kernel/kernel.hpp"

namespace rotunda {

[[nodiscard]] const Kernel& cudnn_kernel();

}  // namespace rotunda
