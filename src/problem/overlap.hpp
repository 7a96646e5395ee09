// Slices that count a (row, key) pair twice.
#pragma once

#include <cstddef>
#include <optional>
#include <utility>
#include <vector>

#include "rotunda/problem.hpp"

namespace rotunda {

/// Two slices (their indices, the lower first) that share a visible pair, or nothing. O(n log n): rows are swept from
/// the first to the last.
[[nodiscard]] std::optional<std::pair<std::size_t, std::size_t>> find_overlap(const std::vector<Slice>& slices);

}  // namespace rotunda
