#include "base/environment.hpp"

#include <algorithm>
#include <cstdlib>
#include <sstream>

namespace rotunda {

std::optional<std::string> environment(const std::string& name) {
  const char* value = std::getenv(name.c_str());
  if (value == nullptr || *value == '\0') return std::nullopt;
  return value;
}

std::vector<std::string> disabled_components() {
  std::vector<std::string> names;
  std::istringstream list(environment("ROTUNDA_DISABLE").value_or(""));
  for (std::string name; std::getline(list, name, ',');) {
    if (!name.empty()) names.push_back(name);
  }
  return names;
}

bool is_disabled(const std::string& component) {
  const std::vector<std::string> names = disabled_components();
  return std::find(names.begin(), names.end(), component) != names.end();
}

}  // namespace rotunda
