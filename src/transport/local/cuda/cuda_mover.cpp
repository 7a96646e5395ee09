// Messages between CUDA devices: the receiver's copy streams, one a peer, pull from the sender's memory in stream
// order.
#include <map>

#include "base/cuda/check.hpp"
#include "base/cuda/event_pool.hpp"
#include "base/cuda/strided_copy.hpp"
#include "base/fail.hpp"
#include "transport/local/mover.hpp"

namespace rotunda::local {
namespace {

const cuda::Event& event_of(const Mark& mark) {
  return *static_cast<const cuda::Event*>(mark.get());
}

/// Lets the device read the memory of the others directly.
void enable_peers(int device, std::span<const int> peers) {
  const cuda::CurrentDevice current(device);
  for (const int peer : peers) {
    int can = 0;
    if (peer == device) continue;
    ROTUNDA_CUDA(cudaDeviceCanAccessPeer(&can, device, peer));
    if (can == 0) {
      fail(ErrorKind::unsupported,
           "devices cuda:{} and cuda:{} can't reach each other's memory, which transport local needs; take transport "
           "nccl, or devices that are linked (nvidia-smi topo -p2p r)",
           device, peer);
    }
    const cudaError_t result = cudaDeviceEnablePeerAccess(peer, 0);
    if (result == cudaErrorPeerAccessAlreadyEnabled) {
      (void)cudaGetLastError();
    } else {
      cuda::check(result, "cudaDeviceEnablePeerAccess");
    }
  }
}

class CudaMover final : public Mover {
 public:
  CudaMover(const Device& device, std::span<const int> peers)
      : device_(device), events_(std::make_shared<cuda::EventPool>(device.index)) {
    enable_peers(device.index, peers);
  }

  void use_stream(Stream stream) override { stream_ = stream; }

  Mark mark() override { return record(stream_); }

  Mark copy(int peer, std::span<const TensorView> from, std::span<const TensorView> to, const Mark& offered,
            const Mark& wanted) override {
    const Stream stream = stream_for(peer);
    event_of(offered).hold(device_.index, stream);
    event_of(wanted).hold(device_.index, stream);
    for (std::size_t i = 0; i < from.size(); ++i) cuda::copy(from[i], to[i], device_.index, stream);
    return record(stream);
  }

  void wait(const Mark& mark) override {
    if (mark != nullptr) event_of(mark).hold(device_.index, stream_);
  }

  void settle(const Mark& mark) noexcept override {
    // An event that was captured into a graph can't be waited for here, and needs not: nothing runs before a replay.
    if (mark != nullptr && cudaEventSynchronize(event_of(mark).get()) != cudaSuccess) (void)cudaGetLastError();
  }

 private:
  Mark record(Stream stream) {
    auto event = events_->take();
    event->record(stream);
    return event;
  }

  Stream stream_for(int peer) {
    const auto found = copies_.find(peer);
    if (found != copies_.end()) return found->second.get();
    return copies_.emplace(peer, OwnedStream(device_)).first->second.get();
  }

  Device device_;
  std::shared_ptr<cuda::EventPool> events_;
  Stream stream_;
  std::map<int, OwnedStream> copies_;
};

}  // namespace

std::unique_ptr<Mover> cuda_mover(const Device& device, std::span<const int> peers) {
  return std::make_unique<CudaMover>(device, peers);
}

}  // namespace rotunda::local
