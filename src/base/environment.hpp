// The environment variables that Rotunda reads.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace rotunda {

/// The value of a variable; nothing where it is unset or empty.
[[nodiscard]] std::optional<std::string> environment(const std::string& name);

/// Names in ROTUNDA_DISABLE.
[[nodiscard]] std::vector<std::string> disabled_components();
[[nodiscard]] bool is_disabled(const std::string& component);

}  // namespace rotunda
