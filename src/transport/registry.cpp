#include "transport/registry.hpp"

#include "transport/availability.hpp"

namespace rotunda {
namespace {

std::vector<TransportEntry> make_table() {
  const std::string no_cuda = why_no_ipc();
  const std::string no_nccl = no_cuda.empty() ? why_no_nccl() : no_cuda;
  return {
      {.name = "local",
       .description = "ranks are threads of one process, on host memory or CUDA devices",
       .automatic = true},
      {.name = "ipc",
       .description = "ranks are processes of one host, on CUDA devices that they may share",
       .missing = no_cuda,
       .processes = true,
       .memory = Device::Kind::cuda},
      {.name = "nccl",
       .description = "ranks are processes with a CUDA device each, on any hosts" +
                      (no_nccl.empty() ? ", NCCL " + nccl_version() : ""),
       .missing = no_nccl,
       .processes = true,
       .memory = Device::Kind::cuda},
      {.name = "mpi", .description = "processes on CPUs", .missing = "not in this build"},
      {.name = "callback",
       .description = "ranks are processes on host memory, and the program that they are carries the bytes",
       .memory = Device::Kind::cpu},
  };
}

}  // namespace

const std::vector<TransportEntry>& transports() {
  static const std::vector<TransportEntry> table = make_table();
  return table;
}

}  // namespace rotunda
