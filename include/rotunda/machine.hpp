// Machines: the figures that plans are timed by, round ones or measured ones.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "rotunda/device.hpp"

namespace rotunda {

/// What a machine does in a second, for choosing and for `rotunda plan`. A field more is a line here and one in
/// for_fields.
struct Machine {
  std::string name = "cpu";
  double flops_per_second = 5e10;  ///< a rank's attention rate
  double bytes_per_second = 4e9;   ///< of a rank's link, each way
  double seconds_per_message = 5e-6;
  bool overlaps = false;  ///< exchanges run beside attention; on CPUs the same cores copy
  double memory_bytes_per_second = 1e10;
  double seconds_per_call = 0;  ///< a kernel's start and its end, when not all of the device has work

  bool operator==(const Machine&) const = default;
};

/// Calls visit(name, field) for every field of a machine: the one list that texts, files and ranks' agreement follow.
template <class AnyMachine, class Visit>
void for_fields(AnyMachine& machine, Visit&& visit) {
  visit("name", machine.name);
  visit("flops_per_second", machine.flops_per_second);
  visit("bytes_per_second", machine.bytes_per_second);
  visit("seconds_per_message", machine.seconds_per_message);
  visit("overlaps", machine.overlaps);
  visit("memory_bytes_per_second", machine.memory_bytes_per_second);
  visit("seconds_per_call", machine.seconds_per_call);
}

/// A kernel's attention rate, forward and backward together: of one thread on a CPU, of the device on CUDA.
struct KernelRate {
  std::string kernel;
  int bits = 16;  ///< of an element: bf16 and fp16 count as alike
  int d = 0;      ///< head dim; it stands for smaller ones too, down to the next rate
  double flops_per_second = 0;
};

/// What was measured of a device, in Machine's units. 0: not measured, a round figure stands for it.
struct Calibration {
  std::vector<KernelRate> rates;
  double bytes_per_second = 0, seconds_per_message = 0, memory_bytes_per_second = 0;
};

/// Where calibrations are kept: calibration.json in the folder ROTUNDA_CACHE. Empty where that is not set.
[[nodiscard]] std::string calibration_file();

/// The calibration that is kept for a device, measured by this version; null where there is none. A file is read once a
/// process; one that can't be read is told once, as a warning, and counts as none. Thread-safe.
[[nodiscard]] std::shared_ptr<const Calibration> find_calibration(const Device& device);

/// The text of a calibration file with this device's in it, in place of an earlier one. `text` is the file as it was;
/// what is no such file is begun anew.
[[nodiscard]] std::string with_calibration(const std::string& text, const Device& device,
                                           const Calibration& calibration);

}  // namespace rotunda
