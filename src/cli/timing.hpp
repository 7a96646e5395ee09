// Timing of sessions, by turns.
#pragma once

#include <functional>
#include <vector>

#include "cli/record.hpp"
#include "cli/session.hpp"

namespace rotunda::cli {

/// What is timed: one session, or several of one rank each on devices of their own, which run at once; their mean
/// counts.
using Contestant = std::vector<Session*>;

/// Medians of at least `repeat` runs of every contestant: forward, and with `grad` backward and both. They take turns
/// within each repeat, so that what disturbs the machine disturbs all alike; two unrecorded rounds warm up. On CUDA
/// devices a turn is several runs back to back: the steady time.
[[nodiscard]] std::vector<Times> time_by_turns(const std::vector<Contestant>& contestants, bool grad, int repeat,
                                               const std::function<void(double)>& progress);

/// The middle value, or the mean of the middle two; 0 of none.
[[nodiscard]] double median(std::vector<double> values);

}  // namespace rotunda::cli
