// A CUDA event that frees itself.
#pragma once

#include <utility>

#include "base/cuda/check.hpp"

namespace rotunda::cuda {

/// Movable; empty until made with a device.
class Event {
 public:
  enum class Use { order, timing };  ///< events that keep no time cost less

  Event() = default;
  Event(int device, Use use) : device_(device) {
    const CurrentDevice current(device);
    ROTUNDA_CUDA(cudaEventCreateWithFlags(&event_, use == Use::timing ? cudaEventDefault : cudaEventDisableTiming));
  }
  ~Event() {
    if (event_ != nullptr) (void)cudaEventDestroy(event_);
  }
  Event(Event&& other) noexcept : device_(other.device_), event_(std::exchange(other.event_, nullptr)) {}
  Event& operator=(Event&& other) noexcept {
    std::swap(device_, other.device_);
    std::swap(event_, other.event_);
    return *this;
  }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  [[nodiscard]] cudaEvent_t get() const { return event_; }

  /// What the stream (of the event's device) holds so far.
  void record(Stream stream) {
    const CurrentDevice current(device_);
    ROTUNDA_CUDA(cudaEventRecord(event_, native(stream)));
  }
  /// The stream, of `device`, goes on after the event.
  void hold(int device, Stream stream) const {
    const CurrentDevice current(device);
    ROTUNDA_CUDA(cudaStreamWaitEvent(native(stream), event_, 0));
  }
  /// Waits for both on the host.
  [[nodiscard]] double seconds_after(const Event& other) const {
    ROTUNDA_CUDA(cudaEventSynchronize(other.event_));
    ROTUNDA_CUDA(cudaEventSynchronize(event_));
    float ms = 0;
    ROTUNDA_CUDA(cudaEventElapsedTime(&ms, other.event_, event_));
    return 1e-3 * static_cast<double>(ms);
  }

 private:
  int device_ = 0;
  cudaEvent_t event_ = nullptr;
};

}  // namespace rotunda::cuda
