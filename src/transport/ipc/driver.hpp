// What the CUDA driver offers beyond the runtime: values in memory that streams write and wait for, and what an address
// belongs to. Found through the runtime, so nothing links to the driver.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include "rotunda/device.hpp"

namespace rotunda::ipc {

/// Enqueues: *flag = value. What the stream has done before is seen by whoever sees the value, on any device.
/// @throws Error device
void write_flag(CUdeviceptr flag, unsigned value, Stream stream);
/// Enqueues: the stream goes on when *flag - value, as a signed number, is not negative. @throws Error device
void wait_flag(CUdeviceptr flag, unsigned value, Stream stream);

/// An allocation: where it begins, how long it is, and a number that no other allocation of this process ever has.
struct Allocation {
  CUdeviceptr base = 0;
  std::size_t bytes = 0;
  unsigned long long number = 0;
};
/// The allocation that an address lies in; false where it lies in none.
[[nodiscard]] bool find_allocation(CUdeviceptr address, Allocation& found);

/// Throws where the driver lacks any of these. @throws Error unsupported
void require_driver();

}  // namespace rotunda::ipc
