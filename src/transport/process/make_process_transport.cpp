#include <fmt/ranges.h>

#include "base/fail.hpp"
#include "transport/registry.hpp"

namespace rotunda {
namespace {

/// Why this rank can't take part, or empty.
std::string why_not(const TransportEntry& entry, const Device& device) {
  if (!entry.available()) return fmt::format("transport {}: {}", entry.name, entry.here.missing);
  if (std::string reason = entry.refuse(device); !reason.empty()) return reason;
  if (!device.is_cuda()) return "";
  const int there = cuda_device_count();
  if (device.index < there) return "";
  return fmt::format("{} is not there: {}", to_string(device),
                     there == 0 ? why_no_cuda() : fmt::format("{} are visible", there));
}

/// Throws what any rank lacks, on every rank alike.
void require_all(Rendezvous& rendezvous, const std::string& lacking) {
  const std::vector<std::string> reasons = rendezvous.all_gather(lacking);
  for (std::size_t rank = 0; rank < reasons.size(); ++rank) {
    if (!reasons[rank].empty()) fail(ErrorKind::unsupported, "rank {} can't take part: {}", rank, reasons[rank]);
  }
}

}  // namespace

std::unique_ptr<Transport> make_process_transport(const TransportEntry& entry, const ProcessOptions& options) {
  const auto& [rank, size, local_rank, address, launcher] = options.group;
  auto rendezvous = std::make_unique<Rendezvous>(RendezvousOptions{rank, size, address, options.timeout});
  require_all(*rendezvous, why_not(entry, options.device));
  try {
    return entry.here.make(options, rendezvous);
  } catch (const std::exception& error) {
    if (rendezvous != nullptr) rendezvous->abort(error.what());  // the others need not wait for this rank
    throw;
  }
}

std::unique_ptr<Transport> make_process_transport(const std::string& name, const ProcessOptions& options) {
  std::vector<std::string> names;
  for (const TransportEntry& entry : transports()) {
    if (!entry.processes) continue;
    if (entry.name == name) return make_process_transport(entry, options);
    names.push_back(entry.name);
  }
  fail(ErrorKind::bad_input, "transport '{}' is none of processes; allowed: {}", name, fmt::join(names, ", "));
}

}  // namespace rotunda
