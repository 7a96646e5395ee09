// The slices and rows of a program's steps, in the memory of the device that runs them.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "kernel/elementwise/elementwise.hpp"
#include "rotunda/device.hpp"
#include "rotunda/schedule.hpp"

namespace rotunda {

/// Copies of a plan's lists on a CUDA device, made once; on a CPU there are none, and the host's lists serve.
class StepLists {
 public:
  /// The programs must outlive this and stay where they are. @throws Error device
  StepLists(const std::vector<const Program*>& programs, const Device& device);

  /// The device's copy of a step's slices; nullptr on a CPU.
  [[nodiscard]] const Slice* on_device(const std::vector<Slice>& slices) const;
  [[nodiscard]] RowList rows(const std::vector<RowSpan>& rows) const;

 private:
  DeviceMemory memory_;
  std::unordered_map<const void*, std::int64_t> offsets_;  ///< of a list's first element, by its host address
};

}  // namespace rotunda
