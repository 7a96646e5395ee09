// Byte streams between the processes of one host, in shared memory: one ring for each ordered pair of ranks.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "transport/rendezvous/rendezvous.hpp"

namespace rotunda::process {

/// One rank's end, used by one thread at a time. A byte takes about a microsecond to be seen.
class Mailbox {
 public:
  /// Collective. @throws Error unsupported where the ranks share no memory (several hosts), transport
  explicit Mailbox(Rendezvous& rendezvous);
  ~Mailbox();
  Mailbox(const Mailbox&) = delete;
  Mailbox& operator=(const Mailbox&) = delete;

  /// Never blocks: what the ring can't take is kept, and flush() moves it on.
  void send(int peer, std::string_view bytes);
  void flush();
  /// Appends what has come from a peer.
  void receive(int peer, std::string& to);

 private:
  struct Ring;
  [[nodiscard]] Ring& ring(int from, int to) const;
  void flush(int peer);

  int rank_ = 0, size_ = 0;
  std::size_t bytes_ = 0;
  void* memory_ = nullptr;
  std::vector<std::string> kept_;  ///< by peer
};

}  // namespace rotunda::process
