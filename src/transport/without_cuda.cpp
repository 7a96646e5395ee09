// transport in a build without CUDA.
#include "base/fail.hpp"
#include "transport/local/mover.hpp"

namespace rotunda::local {

std::unique_ptr<Mover> cuda_mover(const Device&, std::span<const int>) {
  fail(ErrorKind::unsupported, "{}", why_no_cuda());
}

}  // namespace rotunda::local
