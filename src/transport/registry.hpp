// The transports that have a name: what each is, and what it lacks on this build and machine.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "rotunda/device.hpp"
#include "transport/availability.hpp"

namespace rotunda {

struct TransportEntry {
  std::string name;
  std::string description;
  Availability here{};
  bool automatic = false;                ///< may be chosen by auto
  bool processes = false;                ///< made by make_process_transport
  std::optional<Device::Kind> memory{};  ///< the one kind that it moves; nothing: any

  [[nodiscard]] bool available() const { return here.missing.empty(); }
  /// What it is, and what carries it or what it lacks.
  [[nodiscard]] std::string text() const;
  /// Why it can't move messages of a device, or empty.
  [[nodiscard]] std::string refuse(const Device& device) const;
};

/// The one place to add a transport. Looked up once: NCCL is a library to be found and loaded.
[[nodiscard]] const std::vector<TransportEntry>& transports();
/// nullptr where there is none of that name.
[[nodiscard]] const TransportEntry* find_transport(const std::string& name);

/// The public function's work, for any entry.
[[nodiscard]] std::unique_ptr<Transport> make_process_transport(const TransportEntry& entry,
                                                                const ProcessOptions& options);

}  // namespace rotunda
