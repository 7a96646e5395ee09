// What this build and this machine have: for `rotunda info` and for messages.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "rotunda/device.hpp"

namespace rotunda {

/// A kernel or a transport that the project knows.
struct Component {
  std::string kind;  ///< "kernel" or "transport"
  std::string name;
  bool available = false;
  std::string description;               ///< what it is, or why it is not available and what it needs
  bool processes = false;                ///< a transport that make_process_transport makes: each rank is a process
  std::optional<Device::Kind> memory{};  ///< the one kind that a transport moves; nothing: any
};

[[nodiscard]] std::vector<Component> components();

/// An environment variable that Rotunda reads.
struct Variable {
  std::string name, meaning;
  std::optional<std::string> value;  ///< at present
};

[[nodiscard]] std::vector<Variable> environment_variables();

/// "0.1.0"
[[nodiscard]] std::string version();

}  // namespace rotunda
