// execute in a build without CUDA.
#include "base/fail.hpp"
#include "execute/step_clock.hpp"
#include "rotunda/graph.hpp"

namespace rotunda {

std::unique_ptr<StepClock> cuda_clock(const Device&, Stream, std::chrono::steady_clock::time_point) {
  fail(ErrorKind::unsupported, "{}", why_no_cuda());
}

struct GroupGraph::Impl {};

GroupGraph::GroupGraph(std::vector<std::unique_ptr<Transport>>&, const std::function<void(Transport&, Stream)>&) {
  fail(ErrorKind::unsupported, "{}", why_no_cuda());
}
GroupGraph::~GroupGraph() = default;
GroupGraph::GroupGraph(GroupGraph&& other) noexcept = default;
GroupGraph& GroupGraph::operator=(GroupGraph&& other) noexcept = default;
void GroupGraph::replay(Stream) {}

}  // namespace rotunda
