// FlashAttention-4's kernels for Hopper as a kernel that takes any slice list and accumulates in fp32.
#pragma once

#include "kernel/kernel.hpp"

namespace rotunda {

[[nodiscard]] const Kernel& fa4_kernel();

}  // namespace rotunda
