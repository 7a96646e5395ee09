// One capture over the streams of all ranks: they join rank 0's by an event, and end in one.
#include "rotunda/graph.hpp"

#include <utility>

#include "base/cuda/check.hpp"
#include "base/cuda/event.hpp"
#include "base/fail.hpp"

namespace rotunda {
namespace {

struct Rank {
  explicit Rank(const Device& the_device)
      : device(the_device), stream(the_device), mark(the_device.index, cuda::Event::Use::order) {}

  Device device;
  OwnedStream stream;
  cuda::Event mark;
};

}  // namespace

struct GroupGraph::Impl {
  std::vector<Rank> ranks;
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;

  ~Impl() {
    if (executable != nullptr) (void)cudaGraphExecDestroy(executable);
    if (graph != nullptr) (void)cudaGraphDestroy(graph);
  }

  void begin() {
    Rank& first = ranks.front();
    const cuda::CurrentDevice current(first.device.index);
    // Relaxed: the ranks' threads take part, and each may make calls that a capture of its own would forbid.
    ROTUNDA_CUDA(cudaStreamBeginCapture(cuda::native(first.stream.get()), cudaStreamCaptureModeRelaxed));
    first.mark.record(first.stream.get());
    for (std::size_t r = 1; r < ranks.size(); ++r) first.mark.hold(ranks[r].device.index, ranks[r].stream.get());
  }

  void end() {
    Rank& first = ranks.front();
    for (std::size_t r = 1; r < ranks.size(); ++r) {
      ranks[r].mark.record(ranks[r].stream.get());
      ranks[r].mark.hold(first.device.index, first.stream.get());
    }
    const cuda::CurrentDevice current(first.device.index);
    ROTUNDA_CUDA(cudaStreamEndCapture(cuda::native(first.stream.get()), &graph));
    ROTUNDA_CUDA(cudaGraphInstantiate(&executable, graph, 0));
  }

  /// Leaves no stream in capture.
  void give_up() noexcept {
    cudaGraph_t rest = nullptr;
    (void)cudaStreamEndCapture(cuda::native(ranks.front().stream.get()), &rest);
    if (rest != nullptr) (void)cudaGraphDestroy(rest);
    (void)cudaGetLastError();
  }
};

GroupGraph::GroupGraph(std::vector<std::unique_ptr<Transport>>& group,
                       const std::function<void(Transport&, Stream)>& body)
    : impl_(std::make_unique<Impl>()) {
  for (const auto& transport : group) {
    if (!transport->device().is_cuda()) {
      fail(ErrorKind::unsupported, "a graph of rank {}, which works on host memory; allowed: ranks on CUDA devices",
           transport->rank());
    }
    impl_->ranks.emplace_back(transport->device());
  }
  impl_->begin();
  try {
    run_ranks(group, [&](Transport& transport) {
      body(transport, impl_->ranks[static_cast<std::size_t>(transport.rank())].stream.get());
    });
    impl_->end();
  } catch (...) {
    impl_->give_up();
    throw;
  }
}

GroupGraph::~GroupGraph() = default;
GroupGraph::GroupGraph(GroupGraph&& other) noexcept = default;
GroupGraph& GroupGraph::operator=(GroupGraph&& other) noexcept = default;

void GroupGraph::replay(Stream stream) {
  const cuda::CurrentDevice current(impl_->ranks.front().device.index);
  ROTUNDA_CUDA(cudaGraphLaunch(impl_->executable, cuda::native(stream)));
}

}  // namespace rotunda
