// Machines that `rotunda plan` can predict times for.
#pragma once

#include <string>

#include "rotunda/plan.hpp"

namespace rotunda::cli {

/// A machine known by name, or one described by a JSON file {"name", "flops_per_second", "bytes_per_second",
/// "seconds_per_message", "overlaps"}: a rank's attention rate, its link's rate each way, a message's latency, and
/// whether exchanges run beside attention (default false).
/// @throws Error bad_input
[[nodiscard]] Machine find_cluster(const std::string& name_or_file);

/// The help text of --cluster.
[[nodiscard]] const char* cluster_help();

}  // namespace rotunda::cli
