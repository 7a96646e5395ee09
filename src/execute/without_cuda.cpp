// execute in a build without CUDA.
#include "base/fail.hpp"
#include "execute/step_clock.hpp"

namespace rotunda {

std::unique_ptr<StepClock> cuda_clock(const Device&, Stream, std::chrono::steady_clock::time_point) {
  fail(ErrorKind::unsupported, "{}", why_no_cuda());
}

}  // namespace rotunda
