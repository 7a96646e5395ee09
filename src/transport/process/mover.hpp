// How one process reads the memory of another: what a pull transport leaves to the kind of memory.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "rotunda/device.hpp"
#include "rotunda/tensor.hpp"

namespace rotunda::process {

/// A point in this rank's work that its streams may wait for.
using Mark = std::shared_ptr<void>;

/// One rank's means, used by the rank's thread alone. A slot names a direction of an exchange between two ranks: the
/// signals of a slot are used in turn by offer, pull, wait_taken, and again.
class Mover {
 public:
  virtual ~Mover() = default;

  [[nodiscard]] virtual int slots() const = 0;  ///< for each peer
  virtual void use_stream(Stream) {}
  /// The rank's work so far.
  virtual Mark mark() { return nullptr; }
  /// Sender: when the work so far is done the views may be read. Returns where they lie, in words that the peer's pull
  /// understands. What has been enqueued when this returns is enough for the peer to go on.
  virtual std::string offer(int peer, int slot, std::span<const TensorView> views) = 0;
  /// Receiver: to[i] = from[i] (whose data is where `where` says), once the sender's work before the offer and this
  /// rank's before `wanted` are done; then signals that they are taken. The mark is the arrival.
  virtual Mark pull(int peer, int slot, std::string_view where, std::span<const TensorView> from,
                    std::span<const TensorView> to, const Mark& wanted) = 0;
  /// Within this rank.
  virtual Mark copy(std::span<const TensorView> from, std::span<const TensorView> to, const Mark& ready) = 0;
  /// The rank's work from now on comes after the mark.
  virtual void wait(const Mark&) {}
  /// The rank's work from now on comes after the peer has taken what was offered. Its host has said that it has
  /// enqueued the pull.
  virtual void wait_taken(int, int) {}
  /// Called now and then, when nothing is on its way: forgets memory that is no more.
  virtual void tidy() {}
  /// After a failure: returns when nothing of this rank's reads or writes its buffers any more. Lets streams go that
  /// wait for others.
  virtual void stop() noexcept {}
};

}  // namespace rotunda::process
