#include "transport/ipc/ipc_mover.hpp"

#include <algorithm>
#include <chrono>
#include <thread>

#include "base/cuda/check.hpp"
#include "base/cuda/event_pool.hpp"
#include "base/cuda/strided_copy.hpp"
#include "base/fail.hpp"
#include "transport/ipc/flags.hpp"
#include "transport/ipc/shared_memory.hpp"

namespace rotunda::ipc {
namespace {

using process::Mark;
using Clock = std::chrono::steady_clock;

// What has been let go is done within milliseconds; longer only behind a long kernel of the caller's.
constexpr auto kMostPatience = std::chrono::seconds(10);

const cuda::Event& event_of(const Mark& mark) {
  return *static_cast<const cuda::Event*>(mark.get());
}

bool is_captured(Stream stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  if (cudaStreamIsCapturing(cuda::native(stream), &status) != cudaSuccess) (void)cudaGetLastError();
  return status != cudaStreamCaptureStatusNone;
}

class IpcMover final : public process::Mover {
 public:
  IpcMover(Rendezvous& rendezvous, const Device& device)
      : rendezvous_(rendezvous),
        rank_(rendezvous.rank()),
        device_(device),
        events_(std::make_shared<cuda::EventPool>(device.index)),
        exports_(rendezvous.rank(), rendezvous.size()),
        flags_(std::make_unique<Flags>(rendezvous, device)) {
    for (int peer = 0; peer < rendezvous.size(); ++peer) {
      imports_.emplace_back(rank_, peer, device.index);
      copies_.emplace_back(device);
    }
  }

  ~IpcMover() override {
    if (rendezvous_.failed()) {
      stop();
      Flags::abandon(std::move(flags_));
      return;
    }
    // What has been pulled may still be on its way; the peers' memory stays mapped until it has come.
    for (const OwnedStream& copies : copies_) {
      if (!is_captured(copies.get())) (void)cudaStreamSynchronize(cuda::native(copies.get()));
    }
    (void)cudaGetLastError();
  }

  [[nodiscard]] int slots() const override { return Flags::kSlots; }
  void use_stream(Stream stream) override { stream_ = stream; }
  Mark mark() override { return record(stream_); }

  std::string offer(int peer, int slot, std::span<const TensorView> views) override {
    const cuda::CurrentDevice current(device_.index);
    std::vector<const void*> addresses;
    for (const TensorView& view : views) addresses.push_back(view.empty() ? nullptr : view.data);
    std::string where = exports_.describe(peer, addresses);
    write_flag(flags_->of(peer, Flags::Kind::offered, slot), 1, stream_);
    return where;
  }

  Mark pull(int peer, int slot, std::string_view where, std::span<const TensorView> from,
            std::span<const TensorView> to, const Mark& wanted) override {
    const cuda::CurrentDevice current(device_.index);
    const Stream stream = copies(peer);
    Imports& imports = imports_[static_cast<std::size_t>(peer)];
    const std::vector<void*> addresses = imports.read(where, from.size());
    event_of(wanted).hold(device_.index, stream);
    const CUdeviceptr offered = flags_->mine(Flags::Kind::offered, peer, slot);
    wait_flag(offered, 1, stream);
    write_flag(offered, 0, stream);
    for (std::size_t i = 0; i < from.size(); ++i) {
      TensorView source = from[i];
      source.data = addresses[i];
      cuda::copy(source, to[i], device_.index, stream);
    }
    write_flag(flags_->of(peer, Flags::Kind::taken, slot), 1, stream);
    Mark arrived = record(stream);
    if (imports.has_gone() && !is_captured(stream)) {
      ROTUNDA_CUDA(cudaStreamSynchronize(cuda::native(stream)));
      imports.close_gone();
    }
    return arrived;
  }

  Mark copy(std::span<const TensorView> from, std::span<const TensorView> to, const Mark& ready) override {
    const Stream stream = copies(rank_);
    event_of(ready).hold(device_.index, stream);
    for (std::size_t i = 0; i < from.size(); ++i) cuda::copy(from[i], to[i], device_.index, stream);
    return record(stream);
  }

  void wait(const Mark& mark) override { event_of(mark).hold(device_.index, stream_); }

  void wait_taken(int peer, int slot) override {
    const cuda::CurrentDevice current(device_.index);
    const CUdeviceptr taken = flags_->mine(Flags::Kind::taken, peer, slot);
    wait_flag(taken, 1, stream_);
    write_flag(taken, 0, stream_);
  }

  void tidy() override {
    const cuda::CurrentDevice current(device_.index);
    exports_.tidy();
  }

  void stop() noexcept override {
    const auto deadline = Clock::now() + kMostPatience;
    while (std::ranges::any_of(copies_, [](const OwnedStream& copies) { return is_busy(copies.get()); })) {
      flags_->set_all();
      if (Clock::now() >= deadline) return;
      std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
  }

 private:
  /// What is captured does not run.
  static bool is_busy(Stream stream) {
    if (is_captured(stream)) return false;
    const cudaError_t result = cudaStreamQuery(cuda::native(stream));
    (void)cudaGetLastError();
    return result == cudaErrorNotReady;
  }

  Mark record(Stream stream) {
    auto event = events_->take();
    event->record(stream);
    return event;
  }
  [[nodiscard]] Stream copies(int peer) const { return copies_[static_cast<std::size_t>(peer)].get(); }

  Rendezvous& rendezvous_;
  int rank_;
  Device device_;
  Stream stream_;
  std::shared_ptr<cuda::EventPool> events_;
  Exports exports_;
  std::vector<Imports> imports_;     ///< by peer
  std::unique_ptr<Flags> flags_;     ///< outlive the streams that wait for them
  std::vector<OwnedStream> copies_;  ///< by peer: what this rank pulls; its own: what it sends to itself
};

}  // namespace

std::unique_ptr<process::Mover> make_mover(Rendezvous& rendezvous, const Device& device) {
  require_driver();
  return std::make_unique<IpcMover>(rendezvous, device);
}

}  // namespace rotunda::ipc
