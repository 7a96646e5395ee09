// How the processes of a job find each other, exchange small data on the host, and learn that one of them has failed.
//
// Rank 0 is the hub of a star of sockets (one host: a Unix socket; several: TCP). A thread in every process owns its
// sockets, so a connection that closes (a process that has died) or an abort reaches everybody at once, whatever the
// process is busy with. No MPI library takes part: mpirun only starts the processes.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace rotunda {

/// Who failed and why.
struct PeerFailure {
  int rank = 0;
  std::string reason;
};

struct RendezvousOptions {
  int rank = 0, size = 1;
  /// Where rank 0 listens: "unix:PATH" or "HOST:PORT".
  std::string address;
  std::chrono::milliseconds timeout{60'000};
};

/// One process's end. Thread-safe.
class Rendezvous {
 public:
  /// Returns when all ranks are there. @throws Error transport naming who is missing after the timeout, bad_input for
  /// an address that can't be used
  explicit Rendezvous(const RendezvousOptions& options);
  /// Leaves in order. Everybody should have what they need from rank 0 by then: it passes on what the others say.
  ~Rendezvous();
  Rendezvous(const Rendezvous&) = delete;
  Rendezvous& operator=(const Rendezvous&) = delete;

  [[nodiscard]] int rank() const;
  [[nodiscard]] int size() const;
  [[nodiscard]] std::chrono::milliseconds timeout() const;

  /// Every rank's bytes, by rank; any size. Collective, with the timeout. @throws Error transport
  [[nodiscard]] std::vector<std::string> all_gather(const std::string& bytes);
  /// The same in two halves, for callers that have other work while they wait: the number of the agreement, counted
  /// from 0, and its result once it is complete.
  [[nodiscard]] std::int64_t join(const std::string& bytes);
  [[nodiscard]] std::optional<std::vector<std::string>> result(std::int64_t number);
  /// Whether a rank is known to have joined an agreement that this one has not: it waits for this one.
  [[nodiscard]] bool waits_in_agreement(int rank) const;
  /// The lowest rank that is not known to have joined an agreement.
  [[nodiscard]] int missing_in(std::int64_t number) const;

  /// Says how far this rank's work has come; the others see it within a fraction of a second.
  void set_progress(std::int64_t step);
  /// The rank whose last known progress is the least, and that progress.
  [[nodiscard]] std::pair<int, std::int64_t> slowest() const;

  /// Makes this rank the one that failed, and tells everybody. The first failure counts. Never throws.
  void abort(const std::string& reason) noexcept;
  [[nodiscard]] std::optional<PeerFailure> failure() const;
  /// Cheap: whether failure() has something.
  [[nodiscard]] bool failed() const noexcept;
  /// Whether a rank has left in order.
  [[nodiscard]] bool has_left(int rank) const;
  /// Called once, from the rendezvous' own thread or the one that aborts, when a failure becomes known (at once where
  /// it is known). Must not block. An empty function takes it back; when that returns no call is at work.
  void on_failure(std::function<void()> call);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Throws the group's failure, if there is one, as Error transport. @throws AbortEcho
void check_failure(const Rendezvous& rendezvous);
/// Makes `reason` the failure of this rank and throws it; an earlier failure is thrown instead.
[[noreturn]] void fail_group(Rendezvous& rendezvous, const std::string& reason);
/// How long what a peer has sent before it went into an agreement may take to come.
inline constexpr std::chrono::seconds kElsewhere{2};
/// The sentence for a peer that waits in an agreement while this rank waits for it.
[[nodiscard]] std::string elsewhere_text(const Rendezvous& rendezvous, int peer, const std::string& what);
/// "rank 0 waited 2 s for rank 1 to send exchange 4"
[[nodiscard]] std::string late_text(const Rendezvous& rendezvous, int peer, const std::string& what);

}  // namespace rotunda
