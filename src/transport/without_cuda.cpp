// transport in a build without CUDA.
#include "base/fail.hpp"
#include "transport/ipc/availability.hpp"
#include "transport/local/mover.hpp"
#include "transport/nccl/availability.hpp"

namespace rotunda::local {

std::unique_ptr<Mover> cuda_mover(const Device&, std::span<const int>) {
  fail(ErrorKind::unsupported, "{}", why_no_cuda());
}

}  // namespace rotunda::local

namespace rotunda::ipc {

Availability availability() {
  return {.missing = why_no_cuda()};
}

}  // namespace rotunda::ipc

namespace rotunda::nccl {

Availability availability() {
  return {.missing = why_no_cuda()};
}

}  // namespace rotunda::nccl
