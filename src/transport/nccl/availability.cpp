#include "transport/nccl/availability.hpp"

#include "rotunda/error.hpp"
#include "transport/nccl/nccl_transport.hpp"

namespace rotunda::nccl {
namespace {

std::unique_ptr<Transport> make(const ProcessOptions& options, std::unique_ptr<Rendezvous>& rendezvous) {
  auto communicator = communicator_of(*rendezvous, options);
  return std::make_unique<NcclTransport>(options, std::move(rendezvous), std::move(communicator));
}

}  // namespace

Availability availability() {
  try {
    return {.make = make, .library = "NCCL " + library().version};
  } catch (const Error& error) {
    return {.missing = error.what()};
  }
}

}  // namespace rotunda::nccl
