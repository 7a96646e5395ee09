// The kernel's two directions as operations.
#pragma once

#include "kernel/cudnn/operations.hpp"
#include "kernel/grouping.hpp"
#include "kernel/kernel.hpp"

namespace rotunda::cudnn {

/// ForwardArgs' contract. Operations' partial results have 16 bits; state and sums are fp32.
void forward(const ForwardArgs& args, const std::vector<GroupedCall>& calls, int device, Operations& operations);

/// BackwardArgs' contract, with `out` in delta's place.
void backward(const BackwardArgs& args, const std::vector<GroupedCall>& calls, int device, Operations& operations);

}  // namespace rotunda::cudnn
