// The thread of a callback transport that waits for the host program, so that the rank's own thread never does: that
// one can give up after its timeout, or when another rank has failed, whatever the host program is doing.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/memory.hpp"
#include "rotunda/transport.hpp"
#include "transport/callback/label.hpp"

namespace rotunda::callback {

/// Everything that one rank sends to, or receives from, one peer in one exchange.
struct Parcel {
  int peer = 0, id = 0;
  std::vector<TensorView> views;  ///< the rank's own tensors: only its own thread touches their memory
  std::string label;              ///< sent, or received
  HostBuffer bytes;               ///< all views, densely, one after the other
  std::int64_t label_ticket = 0, ticket = 0;
  std::string difference;            ///< received: what the sides disagree about; then nothing else came
  std::atomic<bool> awaited{false};  ///< received: the courier has nothing else to wait for before this
  std::atomic<bool> done{false};
};

/// Both directions of an exchange of one rank.
struct Errand {
  std::vector<std::shared_ptr<Parcel>> sends, receives;
};

class Courier {
 public:
  Courier(int rank, std::shared_ptr<HostExchange> exchange);
  /// Tells the host program to stop where an errand is under way, and leaves the thread to itself if that takes long.
  ~Courier();
  Courier(const Courier&) = delete;
  Courier& operator=(const Courier&) = delete;

  /// Sends the parcels on their way, and queues what has to be waited for. Errands are done in order: as all ranks have
  /// the same order, the earliest that is under way anywhere always gets on.
  void run(const Errand& errand);

  /// Sleeps until `done` holds, at most until the deadline; asked again whenever something has come.
  bool wait(const std::function<bool()>& done, std::chrono::steady_clock::time_point deadline);
  /// What the host program threw.
  [[nodiscard]] std::optional<std::string> error() const;
  /// Wakes the one that waits: something may have changed elsewhere.
  void wake();
  void stop() noexcept;

 private:
  struct State;
  std::shared_ptr<State> state_;  ///< the thread's too, which may outlive this object
  std::thread thread_;
};

}  // namespace rotunda::callback
