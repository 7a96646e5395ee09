#include "transport/ipc/availability.hpp"

#include "transport/ipc/ipc_mover.hpp"
#include "transport/process/pull_transport.hpp"

namespace rotunda::ipc {
namespace {

std::unique_ptr<Transport> make(const ProcessOptions& options, std::unique_ptr<Rendezvous>& rendezvous) {
  auto mailbox = std::make_unique<process::Mailbox>(*rendezvous);
  auto mover = make_mover(*rendezvous, options.device);
  return std::make_unique<process::PullTransport>("ipc", options, std::move(rendezvous), std::move(mailbox),
                                                  std::move(mover));
}

}  // namespace

Availability availability() {
  return {.make = make};
}

}  // namespace rotunda::ipc
