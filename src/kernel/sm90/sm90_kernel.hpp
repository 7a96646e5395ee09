// Attention on Hopper (compute capability 9.0) by wgmma and TMA: head dims above 256 up to 512, which libraries don't
// serve. docs/kernels/wide.md describes it.
#pragma once

#include "kernel/kernel.hpp"

namespace rotunda {

[[nodiscard]] const Kernel& sm90_kernel();

}  // namespace rotunda
