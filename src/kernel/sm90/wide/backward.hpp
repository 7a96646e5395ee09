// Backward for head dims above 256.
#pragma once

#include <optional>
#include <string>

#include "kernel/kernel.hpp"

namespace rotunda::sm90::wide {

/// Why the gradients of a problem whose forward is served can't be had, or nothing.
[[nodiscard]] std::optional<std::string> refuse_backward(const Problem& problem);

/// Scratch of a call. pool_bytes bounds what P and dS take of it (BackwardShape; 0: the default).
[[nodiscard]] std::int64_t backward_workspace_bytes(const Problem& problem, const CallShape& call,
                                                    std::int64_t pool_bytes);

/// Enqueued on the context's stream; its device is current. Gradients that are initialised may be 16-bit.
void backward(const BackwardArgs& args, const KernelContext& context, std::int64_t pool_bytes);

}  // namespace rotunda::sm90::wide
