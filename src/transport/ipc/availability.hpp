#pragma once

#include "transport/availability.hpp"

namespace rotunda::ipc {

[[nodiscard]] Availability availability();

}  // namespace rotunda::ipc
