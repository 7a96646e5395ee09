// What this build and machine have of a transport.
#pragma once

#include <memory>
#include <string>

#include "rotunda/transport.hpp"
#include "transport/rendezvous/rendezvous.hpp"

namespace rotunda {

/// Makes this process's end of a group whose ranks have met. Collective. Takes the rendezvous once nothing can fail any
/// more: what is thrown before reaches the others through it. @throws Error
using ProcessMaker = std::unique_ptr<Transport> (*)(const ProcessOptions&, std::unique_ptr<Rendezvous>&);

struct Availability {
  std::string missing{};        ///< what it needs and is not here; empty: available
  ProcessMaker make = nullptr;  ///< where its ranks are processes and nothing is missing
  std::string library{};        ///< that carries it: "NCCL 2.28.9"
};

}  // namespace rotunda
