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

/// The transport that is asked for by name, or nothing where that is left open or unknown.
[[nodiscard]] std::optional<Component> asked_transport(const PlanOptions& options);

/// Cores that this process may use.
[[nodiscard]] int cores();

}  // namespace rotunda::cli
