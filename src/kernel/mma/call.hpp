// One call of the kernel on the current device, as launches with the tilings that `shared_bytes` leaves room for: the
// shared memory that a block may have.
#pragma once

#include <optional>
#include <string>

#include "kernel/kernel.hpp"

namespace rotunda::mma {

void forward(const ForwardArgs& args, int shared_bytes, Stream stream);
void backward(const BackwardArgs& args, int shared_bytes, Stream stream);

/// Why there is no tiling for a problem, or nothing.
[[nodiscard]] std::optional<std::string> refuse_memory(const Problem& problem, int shared_bytes);

}  // namespace rotunda::mma
