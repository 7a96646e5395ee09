// Peers: other people's attention, timed by programs in bench/peers.
//
// A peer is called as `NAME --problem TEXT --repeat N --threads N --ranks N` and prints one JSON line {"fwd_ms",
// "bwd_ms", "both_ms", "versions": {…}}, times null where it has none; a failure is told on its standard error.
#pragma once

#include <map>
#include <optional>
#include <string>

#include "cli/record.hpp"
#include "rotunda/schedule.hpp"

namespace rotunda::cli {

struct PeerResult {
  Times times;  ///< seconds, 0 where there is none
  std::map<std::string, std::string> versions;
};

/// Forward's and backward's, as baselines name them: "p2p", or "p2p/a2a".
struct SchedulePair {
  ScheduleKind forward, backward;
};
[[nodiscard]] std::optional<SchedulePair> schedules_of(const std::string& baseline);

/// Refuses names that are neither ideal, ideal_same_kernel, schedules, nor a peer. @throws Error bad_input for an
/// unknown one, unsupported for one that the project knows but this copy has no program for
void check_baseline(const std::string& name);

[[nodiscard]] inline bool is_peer(const std::string& name) {
  return name != "ideal" && name != "ideal_same_kernel" && !schedules_of(name);
}

/// What a peer is asked to time.
struct PeerRequest {
  std::string problem;  ///< its text
  int repeat = 20;
  int threads = 1;  ///< of a peer on CPUs
  int ranks = 1;    ///< of a peer that splits the sequence
};

/// Runs a peer; Python scripts with `python`, where it is given. @throws Error unsupported with what the peer said
[[nodiscard]] PeerResult run_peer(const std::string& name, const std::string& python, const PeerRequest& request);

}  // namespace rotunda::cli
