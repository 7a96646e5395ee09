// What this build and machine have of the transports that need more than a CPU.
#pragma once

#include <string>

namespace rotunda {

/// Why there is no CUDA in this build, or empty: what transport ipc needs.
[[nodiscard]] std::string why_no_ipc();
/// Why transport nccl can't be used, or empty.
[[nodiscard]] std::string why_no_nccl();
/// "2.28.9", where there is one.
[[nodiscard]] std::string nccl_version();

}  // namespace rotunda
