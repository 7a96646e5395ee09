// Building lists of runs.
#pragma once

#include <cstdint>
#include <vector>

#include "rotunda/shard.hpp"

namespace rotunda {

/// Runs by rank.
using Runs = std::vector<std::vector<Run>>;

/// Appends `len` tokens at `token` to a list of ascending runs of stride 1, joined to the last where they touch.
inline void append_run(std::vector<Run>& runs, std::int64_t token, std::int64_t len) {
  if (len == 0) return;
  if (!runs.empty() && runs.back().token + runs.back().len == token) {
    runs.back().len += len;
  } else {
    runs.push_back({token, len});
  }
}

}  // namespace rotunda
