// What run_ranks and the transports whose ranks are threads of one process tell each other.
#pragma once

#include <string>

#include "rotunda/error.hpp"

namespace rotunda {

/// The error of a rank that stops because another one has failed: never the cause, so run_ranks reports it last.
class AbortEcho : public Error {
 public:
  AbortEcho(int failed_rank, const std::string& reason)
      : Error(ErrorKind::transport, "rank " + std::to_string(failed_rank) + " failed: " + reason) {}
};

/// Thrown by an injected fault: the rank's thread ends and tells nobody. Not a std::exception, so that no handler on
/// the way takes it for an error to report.
struct RankDied {};

/// A transport whose rank may leave while others still wait for it.
class Membership {
 public:
  virtual ~Membership() = default;
  /// This rank will make no further call. What it has posted is withdrawn (when this returns nobody reads its memory),
  /// and whoever needs something of it gets an error at once, not after the timeout.
  virtual void leave() noexcept = 0;
  /// Takes the rank in again, with nothing posted. Only while no rank of the group is in a call.
  virtual void rejoin() = 0;
};

}  // namespace rotunda
