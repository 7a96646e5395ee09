// The state that the ranks of a local group share.
#pragma once

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "rotunda/transport.hpp"
#include "transport/local/mover.hpp"

namespace rotunda::local {

/// The messages of one exchange from one rank to another. It is complete when both sides have posted theirs; then the
/// receiver's thread copies.
struct Delivery {
  enum class State {
    open,       ///< waits for a side, or for the receiver to copy
    copying,    ///< the receiver reads `source`, without the lock
    done,       ///< arrived (on a CUDA device: the copy is enqueued)
    withdrawn,  ///< the sender has gone, `source` may be dangling
  };
  int id = 0, from = 0, to = 0;
  std::vector<TensorView> source, target;
  bool offered = false, wanted = false;  ///< source, target are set
  Mark offered_at, wanted_at;            ///< when the sender's data is ready, the receiver's memory free
  Mark arrived_at;                       ///< with done
  State state = State::open;

  [[nodiscard]] bool ready() const { return offered && wanted && state == State::open; }
  [[nodiscard]] bool done() const { return state == State::done; }
};

/// The deliveries from one rank to another that one side has not posted yet. The n-th post of one side that carries
/// messages for the pair meets the n-th of the other, so all that wait here wait for the same side.
using Channel = std::deque<std::shared_ptr<Delivery>>;

/// What the others see of a rank.
struct Member {
  std::condition_variable wake;
  bool left = false;
  int waits_for = -1;           ///< the rank that it waits for just now
  std::int64_t agreements = 0;  ///< all_gather_text calls begun
  TransportCounters counters;
};

/// One all_gather_text.
struct Agreement {
  std::vector<std::optional<std::string>> texts;
  int joined = 0, taken = 0;  ///< ranks that have given their text, and that have all texts
};

struct Failure {
  int rank = 0;
  std::string reason;
};

/// Everything below `mutex` is guarded by it. Ranks sleep on their own member's `wake`.
struct Group {
  Group(int ranks, const LocalOptions& group_options)
      : size(ranks),
        options(group_options),
        members(static_cast<std::size_t>(ranks)),
        channels(static_cast<std::size_t>(ranks) * static_cast<std::size_t>(ranks)) {}

  const int size;
  const LocalOptions options;

  std::mutex mutex;
  std::vector<Member> members;
  std::vector<Channel> channels;
  std::deque<Agreement> agreements;      ///< those that not every rank has finished
  std::int64_t agreements_finished = 0;  ///< number of the first of them
  std::optional<Failure> failure;

  [[nodiscard]] Member& member(int rank) { return members[static_cast<std::size_t>(rank)]; }
  [[nodiscard]] Channel& channel(int from, int to) { return channels[static_cast<std::size_t>(from * size + to)]; }

  void wake_all() {
    for (auto& member : members) member.wake.notify_all();
  }
};

}  // namespace rotunda::local
