// Forward for head dims above 256. docs/kernels/wide.md describes it.
#pragma once

#include <cstdint>

#include "kernel/kernel.hpp"

namespace rotunda::sm90::wide {

constexpr int kLeastHeadDim = 264, kMostHeadDim = 512;  ///< of d and of d_v, which may differ; multiples of 8

/// Scratch of a call: the work list.
[[nodiscard]] std::int64_t forward_workspace_bytes(const CallShape& call);

/// Enqueued on the context's stream; its device is current. args.device_slices holds args.slices.
void forward(const ForwardArgs& args, const KernelContext& context);

}  // namespace rotunda::sm90::wide
