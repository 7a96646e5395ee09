// Timing of sessions, by turns.
#pragma once

#include <functional>
#include <vector>

#include "cli/record.hpp"
#include "cli/session.hpp"

namespace rotunda::cli {

/// Medians of `repeat` runs of every session: forward, and with `grad` backward and both. The sessions take turns
/// within each repeat, so that what disturbs the machine disturbs all alike; two unrecorded rounds warm up.
[[nodiscard]] std::vector<Times> time_by_turns(const std::vector<Session*>& sessions, bool grad, int repeat,
                                               const std::function<void(double)>& progress);

/// The middle value, or the mean of the middle two; 0 of none.
[[nodiscard]] double median(std::vector<double> values);

}  // namespace rotunda::cli
