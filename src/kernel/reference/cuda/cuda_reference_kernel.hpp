// The reference kernel on CUDA devices: float64 inside, every feature up to head dim 512. What other device kernels are
// compared to, and fast enough for sizes that a host can't check.
#pragma once

#include "kernel/kernel.hpp"

namespace rotunda {

/// As reference_kernel(), tile by tile: sums are float64 and run in one order whatever the device, so results are
/// deterministic; no workspace.
[[nodiscard]] const Kernel& cuda_reference_kernel();

namespace reference {

/// Enqueued on the stream of the current device. args.device_slices holds args.slices.
void cuda_forward(const ForwardArgs& args, Stream stream);
void cuda_backward(const BackwardArgs& args, Stream stream);

}  // namespace reference
}  // namespace rotunda
