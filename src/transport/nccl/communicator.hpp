// NCCL communicators: made with a timeout, kept for the next group of the same processes, aborted from any thread.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>

#include "rotunda/transport.hpp"
#include "transport/nccl/library.hpp"
#include "transport/rendezvous/rendezvous.hpp"

namespace rotunda::nccl {

class Communicator {
 public:
  explicit Communicator(Comm comm) : comm_(comm) {}
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  [[nodiscard]] Comm get() const { return comm_; }
  [[nodiscard]] bool aborted() const { return aborted_; }
  /// Ends what runs on devices and in calls, of all threads. Once.
  void abort() noexcept;

 private:
  Comm comm_;
  std::atomic<bool> aborted_{false};
};

/// Collective: the communicator of these processes and devices, an earlier one where all still have it. It is never
/// destroyed in order, because that would have to happen on all ranks at once.
/// @throws Error unsupported (two ranks on one device), transport, device
[[nodiscard]] std::shared_ptr<Communicator> communicator_of(Rendezvous& rendezvous, const ProcessOptions& options);

}  // namespace rotunda::nccl
