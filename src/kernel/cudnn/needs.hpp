// What calls need, found by rehearsing them on tensors that are nowhere.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "kernel/cudnn/operations.hpp"
#include "kernel/grouping.hpp"
#include "kernel/kernel.hpp"

namespace rotunda::cudnn {

/// The operations of a call, which must not touch the tensors. Those have the strides that need the most scratch.
void rehearse(const Problem& problem, const CallShape& call, const HeadMap& heads,
              const std::vector<GroupedCall>& calls, Operations& operations);

/// Why a call can't be served, or nothing: groups its slices and asks cuDNN about each graph, which takes milliseconds
/// each the first time. With a saved device it is asked about that one.
[[nodiscard]] std::optional<std::string> refuse_call(const Problem& problem, const CallShape& call,
                                                     const SavedDevice* saved = nullptr);

/// Scratch of a call that is served, whatever the strides of its tensors. Builds the plans.
[[nodiscard]] std::int64_t workspace_bytes(const Problem& problem, const CallShape& call);

}  // namespace rotunda::cudnn
