// From options to a session.
#pragma once

#include "cli/options.hpp"
#include "cli/session.hpp"

namespace rotunda::cli {

/// The session that the common options describe for a problem; tracing where --trace was given. Threads that were not
/// given are the cores shared among the ranks.
[[nodiscard]] SessionSetup session_setup(const Options& options, const Problem& problem);

/// Cores that this process may use.
[[nodiscard]] int cores();

}  // namespace rotunda::cli
