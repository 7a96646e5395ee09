// How the processes of a job come together: rank 0 listens, the others connect to it and say who they are.
#pragma once

#include <memory>
#include <vector>

#include "transport/rendezvous/rendezvous.hpp"
#include "transport/rendezvous/sockets.hpp"

namespace rotunda::rendezvous {

/// One for each rank; null where this process has none.
using Connections = std::vector<std::unique_ptr<Connection>>;

/// Rank 0's to all others, once all have come. Each has a welcome to be written. @throws Error transport, which those
/// that have come are told too; bad_input for an address that can't be used
[[nodiscard]] Connections gather_members(const RendezvousOptions& options);

/// Another rank's to rank 0, once that has welcomed it. @throws as above
[[nodiscard]] Connections join_hub(const RendezvousOptions& options);

}  // namespace rotunda::rendezvous
