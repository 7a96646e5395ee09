// Machines that `rotunda plan` can predict times for.
#pragma once

#include <string>

#include "rotunda/plan.hpp"

namespace rotunda::cli {

/// A machine known by name, or one described by a JSON file: an object of Machine's fields, of which flops_per_second,
/// bytes_per_second and seconds_per_message must be given.
/// @throws Error bad_input
[[nodiscard]] Machine find_cluster(const std::string& name_or_file);

/// The help text of --cluster.
[[nodiscard]] const char* cluster_help();

}  // namespace rotunda::cli
