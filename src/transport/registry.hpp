// The transports that have a name: what each is, and what it lacks on this build and machine.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "rotunda/device.hpp"

namespace rotunda {

struct TransportEntry {
  std::string name;
  std::string description;
  std::string missing{};                 ///< what it needs and is not here; empty: available
  bool automatic = false;                ///< may be chosen by auto
  bool processes = false;                ///< made by make_process_transport
  std::optional<Device::Kind> memory{};  ///< the one kind that it moves; nothing: any

  [[nodiscard]] bool available() const { return missing.empty(); }
  /// What it is and what it lacks.
  [[nodiscard]] std::string text() const { return available() ? description : description + ": " + missing; }
};

/// The one place to add a transport. Looked up once: NCCL is a library to be found and loaded.
[[nodiscard]] const std::vector<TransportEntry>& transports();

}  // namespace rotunda
