// CUDA graphs of a whole group: all ranks' work captured once, replayed on new inputs.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "rotunda/device.hpp"
#include "rotunda/transport.hpp"

namespace rotunda {

/// What the ranks of a local group on CUDA devices enqueue, as one CUDA graph. A replay runs it again on the memory it
/// was captured with: new inputs go into the same tensors. Movable.
class GroupGraph {
 public:
  /// Runs body(transport, stream of the rank) on every rank, as run_ranks does, while the streams are captured: nothing
  /// computes. The body must have run before uncaptured on the same objects (plans of library kernels are made then),
  /// must not wait for its stream, and the objects that it uses must outlive the graph.
  /// @throws Error unsupported (host memory; a build without CUDA), device, and whatever the body throws
  GroupGraph(std::vector<std::unique_ptr<Transport>>& group,
             const std::function<void(Transport& transport, Stream stream)>& body);
  ~GroupGraph();
  GroupGraph(GroupGraph&& other) noexcept;
  GroupGraph& operator=(GroupGraph&& other) noexcept;
  GroupGraph(const GroupGraph&) = delete;
  GroupGraph& operator=(const GroupGraph&) = delete;

  /// Enqueues everything once more behind what `stream`, of rank 0's device, holds; what follows on it comes after.
  void replay(Stream stream);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace rotunda
