#include "kernel/mma/tiling.hpp"

#include <algorithm>
#include <span>

namespace rotunda::mma {
namespace {

template <class S>
constexpr Tiling tiling(Pass pass, int teams, bool one_buffer = false, bool small = false) {
  // Rows are copied four at a time by each of the threads that share a piece (tile.cuh, load_rows).
  const int step = 32 * S::kParts * teams / (S::kWidth / 8 < 32 ? S::kWidth / 8 : 32);
  if (teams * S::kTeamRows % (4 * step) != 0 || S::kColumns % (4 * step) != 0) throw "rows are not a multiple of it";
  if (teams > S::kTeams) throw "more threads than its registers suffice for";
  return {.width = S::kWidth,
          .small = small,
          .teams = teams,
          .one_buffer = one_buffer,
          .threads = 32 * S::kParts * teams,
          .rows = teams * S::kTeamRows,
          .bytes = shared_bytes<S>(pass, teams, one_buffer)};
}

// In order of preference, from narrow to wide.
// clang-format off
constexpr Tiling kForward[] = {
    tiling<Forward64>(Pass::forward, 4),
    tiling<Forward128>(Pass::forward, 4),
    tiling<Forward256>(Pass::forward, 4),
    tiling<Forward256>(Pass::forward, 2, true),
    tiling<Forward512>(Pass::forward, 2),
    tiling<Forward512>(Pass::forward, 2, true),
    tiling<Forward512Small>(Pass::forward, 1, true, true),
};
constexpr Tiling kQueries[] = {
    tiling<Queries64>(Pass::queries, 4),
    tiling<Queries128>(Pass::queries, 4),
    tiling<Queries256>(Pass::queries, 4),
    tiling<Queries256>(Pass::queries, 2),
    tiling<Queries256>(Pass::queries, 1, true),
    tiling<Queries512>(Pass::queries, 2),
    tiling<Queries512>(Pass::queries, 1),
    tiling<Queries512>(Pass::queries, 1, true),
};
constexpr Tiling kKeys[] = {
    tiling<Keys64>(Pass::keys, 2),
    tiling<Keys128>(Pass::keys, 2),
    tiling<Keys256>(Pass::keys, 2),
    tiling<Keys256>(Pass::keys, 1, true),
    tiling<Keys512>(Pass::keys, 1),
    tiling<Keys512>(Pass::keys, 1, true),
    tiling<Keys512Small>(Pass::keys, 1, true, true),
};
// clang-format on

std::span<const Tiling> tilings(Pass pass) {
  switch (pass) {
    case Pass::forward: return kForward;
    case Pass::queries: return kQueries;
    case Pass::keys: break;
  }
  return kKeys;
}

}  // namespace

Tiling choose_tiling(Pass pass, int d, int d_v, int shared_bytes) {
  for (const Tiling& tiling : tilings(pass)) {
    if (tiling.width >= std::max(d, d_v) && tiling.bytes <= shared_bytes) return tiling;
  }
  return {};
}

}  // namespace rotunda::mma
