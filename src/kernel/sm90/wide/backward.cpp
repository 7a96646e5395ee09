#include "kernel/sm90/wide/backward.hpp"

#include "base/fail.hpp"

namespace rotunda::sm90::wide {

std::optional<std::string> refuse_backward(const Problem&) {
  return "sm90 has no backward for head dims above 256 in this build";
}

std::int64_t backward_workspace_bytes(const Problem&, const CallShape&) {
  return 0;
}

void backward(const BackwardArgs&, const KernelContext&) {
  ROTUNDA_CHECK(false && "refused");
}

}  // namespace rotunda::sm90::wide
