// Messages between processes that have a CUDA device each, or share one.
//
// Two flags in device memory order a slot's exchange between sender a and receiver b, each in the memory of the one
// that waits for it:
//
//   a's stream   … data ready │ offered := 1              …              wait taken ≥ 1 │ taken := 0 │ may overwrite
//   b's copies   wait b's own work │ wait offered ≥ 1 │ offered := 0 │ copy │ taken := 1 │ event: arrived
//
// Every flag is 0 again at the end, so the same sequence works a second time, as the replay of a captured graph, with
// no host in between. Nothing is overtaken: a sets `offered` again only after its wait for `taken`, which b sets after
// its own reset of `offered`, on one stream; and b sets `taken` again only after the next `offered`, which a sets after
// its reset of `taken`, on one stream. A flag is written by its owner and one peer, never by both at a time.
#pragma once

#include <memory>

#include "transport/process/mover.hpp"
#include "transport/rendezvous/rendezvous.hpp"

namespace rotunda::ipc {

/// Collective. The rendezvous must outlive it. @throws Error unsupported, device, transport
[[nodiscard]] std::unique_ptr<process::Mover> make_mover(Rendezvous& rendezvous, const Device& device);

}  // namespace rotunda::ipc
