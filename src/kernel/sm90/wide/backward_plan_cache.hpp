// Plans of recent calls: a program makes the same few calls again and again.
#pragma once

#include <memory>

#include "kernel/sm90/wide/backward_plan.hpp"

namespace rotunda::sm90::wide {

/// plan_backward(shape), made once while it is among the last few. May be called by several threads.
[[nodiscard]] std::shared_ptr<const BackwardPlan> plan_of(const BackwardShape& shape);

}  // namespace rotunda::sm90::wide
