#include "base/fail.hpp"
#include "transport/availability.hpp"
#include "transport/ipc/ipc_mover.hpp"
#include "transport/nccl/nccl_transport.hpp"
#include "transport/process/pull_transport.hpp"

namespace rotunda {
namespace {

/// Both leave the rendezvous where it is until nothing can fail.
std::unique_ptr<Transport> make_ipc(const ProcessOptions& options, std::unique_ptr<Rendezvous>& rendezvous) {
  auto mailbox = std::make_unique<process::Mailbox>(*rendezvous);
  auto mover = ipc::make_mover(*rendezvous, options.device);
  return std::make_unique<process::PullTransport>("ipc", options, std::move(rendezvous), std::move(mailbox),
                                                  std::move(mover));
}

std::unique_ptr<Transport> make_nccl(const ProcessOptions& options, std::unique_ptr<Rendezvous>& rendezvous) {
  (void)nccl::library();
  auto communicator = nccl::communicator_of(*rendezvous, options);
  return std::make_unique<nccl::NcclTransport>(options, std::move(rendezvous), std::move(communicator));
}

}  // namespace

std::unique_ptr<Transport> make_process_transport(const std::string& name, const ProcessOptions& options) {
  if (name != "ipc" && name != "nccl") {
    fail(ErrorKind::bad_input, "transport '{}' is none of processes; allowed: ipc, nccl", name);
  }
  const auto& [rank, size, local_rank, address, launcher] = options.group;
  auto rendezvous = std::make_unique<Rendezvous>(RendezvousOptions{rank, size, address, options.timeout});
  try {
    if (!options.device.is_cuda() || options.device.index >= cuda_device_count()) {
      fail(ErrorKind::unsupported, "transport {} needs a CUDA device for rank {}, and device {} is not there: {}", name,
           rank, to_string(options.device),
           cuda_device_count() == 0 ? why_no_cuda() : fmt::format("{} are visible", cuda_device_count()));
    }
    return name == "ipc" ? make_ipc(options, rendezvous) : make_nccl(options, rendezvous);
  } catch (const std::exception& error) {
    if (rendezvous != nullptr) rendezvous->abort(error.what());  // the others need not wait for this rank
    throw;
  }
}

std::string why_no_ipc() {
  return "";
}

}  // namespace rotunda
