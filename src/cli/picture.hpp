// Shards and masks as text.
#pragma once

#include <string>

#include "rotunda/problem.hpp"
#include "rotunda/shard.hpp"

namespace rotunda::cli {

/// Who holds which tokens: a strip of digits for each side (a rank a column; '*' where a column holds several ranks'),
/// and each rank's rows and token ranges.
[[nodiscard]] std::string shard_picture(const Problem& problem, const Shard& shard);

/// The mask, queries down and keys across; a visible cell shows the rank that holds its queries.
[[nodiscard]] std::string mask_picture(const Problem& problem, const Shard& shard);

/// The rank of every cell of an axis; -1 where a cell holds tokens of several.
[[nodiscard]] std::vector<int> owners(const TokenMap& map, int cells);

}  // namespace rotunda::cli
