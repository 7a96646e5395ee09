// Watches exchanges and calls of NCCL from a thread of its own: NCCL itself waits for ever.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>

#include "base/cuda/event.hpp"
#include "transport/nccl/communicator.hpp"

namespace rotunda::nccl {

/// Aborts the communicator when the group has failed, and makes the group fail when an exchange has begun on the device
/// (or a call on the host) and not ended within the timeout.
class Watchdog {
 public:
  Watchdog(Rendezvous& rendezvous, std::shared_ptr<Communicator> communicator, const Device& device);
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  /// An exchange between two moments of a stream.
  void add(int id, std::shared_ptr<cuda::Event> begin, std::shared_ptr<cuda::Event> end);
  /// Exchange `id` enters and leaves NCCL's calls. False: the group has failed, and the communicator may be gone.
  [[nodiscard]] bool enter(int id);
  void leave();
  /// Returns when the communicator has been aborted.
  void bite() noexcept;

 private:
  using Clock = std::chrono::steady_clock;
  struct Watched {
    int id = 0;
    std::shared_ptr<cuda::Event> begin, end;
    Clock::time_point begun{};  ///< when it was first seen to have begun
  };

  void watch();
  /// What is late, or nothing.
  std::optional<int> late();
  void fail_late(int id);

  Rendezvous& rendezvous_;
  std::shared_ptr<Communicator> communicator_;
  Device device_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<Watched> watched_;
  int call_ = 0;
  Clock::time_point call_begun_ = Clock::time_point::max();
  bool ending_ = false;
  std::thread thread_;
};

}  // namespace rotunda::nccl
