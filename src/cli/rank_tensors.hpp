// A rank's tensors on the device that its plan runs on.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cli/tensors.hpp"
#include "rotunda/device.hpp"

namespace rotunda::cli {

/// Inputs and outputs of one rank. On a CPU they are what the host sees; on a CUDA device the host has a copy of each,
/// which goes there and comes back whole.
class RankTensors {
 public:
  /// @throws Error unsupported where the machine can't hold them, device where the device can't
  void allocate(const Problem& problem, RowCounts rows, const std::vector<TensorKind>& kinds, const Device& device);

  /// What attention works on.
  [[nodiscard]] const Tensors& on_device() const { return device_.is_cuda() ? device_views_ : host_.views; }
  [[nodiscard]] const Tensors& on_host() const { return host_.views; }
  /// Copies between the two, whole tensors. Nothing on a CPU.
  void upload(const std::vector<TensorKind>& kinds);
  void download(const std::vector<TensorKind>& kinds) const;

 private:
  Device device_;
  TensorStore host_;
  Tensors device_views_;
  std::vector<DeviceMemory> memory_;
};

}  // namespace rotunda::cli
