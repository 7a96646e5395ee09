// One picture of a plan: who holds which tokens, who computes which pairs and when, and what travels meanwhile.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "rotunda/plan.hpp"

namespace rotunda::cli {

/// Draws the plans of all ranks of a group, by rank, with the times predicted for their machine. At most 16 ranks are
/// drawn.
[[nodiscard]] std::string draw_plan(const std::vector<std::shared_ptr<const Plan>>& plans);

}  // namespace rotunda::cli
