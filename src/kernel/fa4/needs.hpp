// What the kernel refuses and what calls need: on the host alone, no device.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "kernel/fa4/exported.hpp"
#include "kernel/kernel.hpp"

namespace rotunda::fa4 {

/// Why no exported kernel serves the problem, or nothing.
[[nodiscard]] std::optional<std::string> refuse(const Problem& problem);

/// Why a call can't be served, or nothing.
[[nodiscard]] std::optional<std::string> refuse_call(const Problem& problem, const CallShape& call);

/// The kernel of a direction of a problem that is not refused.
[[nodiscard]] const Exported& exported_for(const Problem& problem, bool backward);

[[nodiscard]] std::int64_t workspace_bytes(const Problem& problem, const CallShape& call);

/// "FlashAttention-4 for compute capability 9.0, head dims up to 64, 96, …"
[[nodiscard]] std::string describe_exported();

}  // namespace rotunda::fa4
