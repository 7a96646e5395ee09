// From options to a session.
#pragma once

#include <optional>

#include "cli/options.hpp"
#include "cli/session.hpp"
#include "rotunda/info.hpp"

namespace rotunda::cli {

/// The session that the common options describe for a problem; tracing where --trace was given. Threads that were not
/// given are the cores shared among the ranks.
[[nodiscard]] SessionSetup session_setup(const Options& options, const Problem& problem);

/// Warns of flags that change nothing for this problem, or on this plan where there is one. Of a job's processes the
/// first does.
void warn_of_idle_flags(const Options& options, const Problem& problem, const Plan* plan);

/// The transport that is asked for by name, or nothing where that is left open or unknown.
[[nodiscard]] std::optional<Component> asked_transport(const PlanOptions& options);

/// Cores that this process may use.
[[nodiscard]] int cores();

}  // namespace rotunda::cli
