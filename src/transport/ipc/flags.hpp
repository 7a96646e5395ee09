// The flags of one rank, and what it sees of the others'.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "transport/ipc/driver.hpp"
#include "transport/rendezvous/rendezvous.hpp"

namespace rotunda::ipc {

/// After a failure of the group a thread sets all flags of this rank again and again, on a stream of its own, so that
/// streams that wait for a peer which is no more go on; what they compute then counts for nothing.
class Flags {
 public:
  static constexpr int kSlots = 4096;
  enum class Kind { offered, taken };

  /// Collective. @throws Error
  Flags(Rendezvous& rendezvous, const Device& device);
  ~Flags();
  Flags(const Flags&) = delete;
  Flags& operator=(const Flags&) = delete;

  /// After a failure: the flags stay, and are set again and again, for as long as the process lives. Streams of the
  /// caller's may wait for them yet, and then every release of memory on the device would wait too.
  static void abandon(std::unique_ptr<Flags> flags);

  /// The flag in this rank's memory that `peer` sets.
  [[nodiscard]] CUdeviceptr mine(Kind kind, int peer, int slot) const;
  /// The flag in the peer's memory that this rank sets.
  [[nodiscard]] CUdeviceptr of(int peer, Kind kind, int slot) const;
  /// Lets every stream of this rank go that waits now. Thread-safe.
  void set_all() noexcept;

 private:
  [[nodiscard]] static std::int64_t index(Kind kind, int from, int slot);
  void watch();

  Rendezvous& rendezvous_;
  Device device_;
  std::int64_t bytes_ = 0;
  DeviceMemory memory_;
  std::vector<void*> others_;  ///< by rank; null for this one
  unsigned* ones_ = nullptr;   ///< pinned
  cudaStream_t stream_ = nullptr;
  std::mutex stream_mutex_;

  std::mutex mutex_;
  std::condition_variable wake_;
  bool failed_ = false, ending_ = false;
  std::thread watcher_;
};

}  // namespace rotunda::ipc
