// Backward for head dims above 256.
#pragma once

#include <optional>
#include <string>

#include "kernel/kernel.hpp"

namespace rotunda::sm90::wide {

/// Why the gradients of a problem whose forward is served can't be had, or nothing.
[[nodiscard]] std::optional<std::string> refuse_backward(const Problem& problem);

/// Scratch of a call.
[[nodiscard]] std::int64_t backward_workspace_bytes(const Problem& problem, const CallShape& call);

/// Enqueued on the context's stream; its device is current. args.device_slices holds args.slices.
void backward(const BackwardArgs& args, const KernelContext& context);

}  // namespace rotunda::sm90::wide
