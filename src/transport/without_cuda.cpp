// transport in a build without CUDA.
#include "base/fail.hpp"
#include "rotunda/transport.hpp"
#include "transport/availability.hpp"
#include "transport/local/mover.hpp"

namespace rotunda::local {

std::unique_ptr<Mover> cuda_mover(const Device&, std::span<const int>) {
  fail(ErrorKind::unsupported, "{}", why_no_cuda());
}

}  // namespace rotunda::local

namespace rotunda {

std::unique_ptr<Transport> make_process_transport(const std::string& name, const ProcessOptions&) {
  fail(ErrorKind::unsupported, "transport {} moves memory of CUDA devices: {}", name, why_no_cuda());
}

std::string why_no_ipc() {
  return why_no_cuda();
}

std::string why_no_nccl() {
  return why_no_cuda();
}

std::string nccl_version() {
  return "";
}

}  // namespace rotunda
