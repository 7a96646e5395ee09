#include "transport/registry.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "transport/ipc/availability.hpp"
#include "transport/nccl/availability.hpp"

namespace rotunda {
namespace {

/// What a transport between CUDA devices has, where there are any.
Availability on_cuda(Availability (*of)()) {
  return cuda_device_count() == 0 ? Availability{.missing = why_no_cuda()} : of();
}

std::vector<TransportEntry> make_table() {
  return {
      {.name = "local",
       .description = "ranks are threads of one process, on host memory or CUDA devices",
       .automatic = true},
      {.name = "ipc",
       .description = "ranks are processes of one host, on CUDA devices that they may share",
       .here = on_cuda(ipc::availability),
       .processes = true,
       .memory = Device::Kind::cuda},
      {.name = "nccl",
       .description = "ranks are processes with a CUDA device each, on any hosts",
       .here = on_cuda(nccl::availability),
       .processes = true,
       .memory = Device::Kind::cuda},
      {.name = "mpi", .description = "processes on CPUs", .here = {.missing = "not in this build"}},
      {.name = "callback",
       .description = "ranks are processes on host memory, and the program that they are carries the bytes",
       .memory = Device::Kind::cpu},
  };
}

}  // namespace

std::string TransportEntry::text() const {
  if (!available()) return fmt::format("{}: {}", description, here.missing);
  return here.library.empty() ? description : fmt::format("{}, {}", description, here.library);
}

std::string TransportEntry::refuse(const Device& device) const {
  if (memory.value_or(device.kind) == device.kind) return "";
  return fmt::format("transport {} moves memory of {}, not of {}", name,
                     memory == Device::Kind::cuda ? "CUDA devices" : "the host", to_string(device));
}

const std::vector<TransportEntry>& transports() {
  static const std::vector<TransportEntry> table = make_table();
  return table;
}

const TransportEntry* find_transport(const std::string& name) {
  const auto& table = transports();
  const auto found = std::ranges::find(table, name, &TransportEntry::name);
  return found == table.end() ? nullptr : &*found;
}

}  // namespace rotunda
