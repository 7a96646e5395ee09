// What the kernel refuses and what calls need: on the host alone, no device.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "kernel/fa4/exported.hpp"
#include "kernel/fa4/passes.hpp"
#include "kernel/kernel.hpp"

namespace rotunda::fa4 {

/// Why no exported kernel serves the problem, or nothing.
[[nodiscard]] std::optional<std::string> refuse(const Problem& problem);

/// Why a call can't be served, or nothing.
[[nodiscard]] std::optional<std::string> refuse_call(const Problem& problem, const CallShape& call);

/// The kernels for head dims that are not refused. `whole_keys`: dK and dV have 16 bits and are made whole, each head's
/// by one query head.
[[nodiscard]] const Exported& forward_kernel(DType dtype, std::int64_t d, std::int64_t d_v);
[[nodiscard]] BackwardKernels backward_kernels(DType dtype, std::int64_t d, std::int64_t d_v, bool deterministic,
                                               bool whole_keys);

[[nodiscard]] std::int64_t workspace_bytes(const Problem& problem, const CallShape& call);

/// "FlashAttention-4 for compute capability 9.0, head dims up to 64, 96, …"
[[nodiscard]] std::string describe_exported();

}  // namespace rotunda::fa4
