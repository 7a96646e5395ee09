#include "kernel/sm90/wide/forward.hpp"

#include "base/fail.hpp"

namespace rotunda::sm90::wide {

std::int64_t forward_workspace_bytes(const CallShape&) {
  return 0;
}

void forward(const ForwardArgs&, const KernelContext&) {
  ROTUNDA_CHECK(false && "refused");
}

}  // namespace rotunda::sm90::wide
