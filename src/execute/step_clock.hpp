// When steps began and ended: by the host's clock, or by events on a CUDA stream.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "rotunda/attention.hpp"

namespace rotunda {

/// Times the steps of one run. begin and end are called in the run's order; nothing waits for a device until resolve.
class StepClock {
 public:
  virtual ~StepClock() = default;
  virtual void begin() = 0;
  /// Whether intervals are kept; where not, end() needs no name.
  [[nodiscard]] virtual bool keeps_events() const = 0;
  /// Ends the interval begun last. `waits`: it was spent waiting for an exchange.
  virtual void end(TraceEvent::Lane lane, const std::string& name, bool waits) = 0;
  /// Appends the intervals to `events` where that is given, and returns the seconds spent waiting.
  virtual double resolve(std::vector<TraceEvent>* events) = 0;
};

/// epoch: time 0 of the events, which are kept on request: seconds spent waiting are counted either way.
[[nodiscard]] std::unique_ptr<StepClock> host_clock(std::chrono::steady_clock::time_point epoch, bool keeps_events);
/// The stream's clock is tied to the host's where the run begins. @throws Error device
[[nodiscard]] std::unique_ptr<StepClock> cuda_clock(const Device& device, Stream stream,
                                                    std::chrono::steady_clock::time_point epoch);

}  // namespace rotunda
