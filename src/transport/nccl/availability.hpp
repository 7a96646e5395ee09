#pragma once

#include "transport/availability.hpp"

namespace rotunda::nccl {

[[nodiscard]] Availability availability();

}  // namespace rotunda::nccl
