// A dry run of all ranks' programs: no tensors, only which token lies in which buffer row, and predicted times.
// It shows who computes which (query, key) pairs, when, and what travels meanwhile.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "rotunda/plan.hpp"
#include "rotunda/schedule.hpp"

namespace rotunda::cli {

/// A box on a rank's lane, seconds of the model.
struct Interval {
  bool compute = true;
  double begin = 0, end = 0;
  std::string label;
  int order = 0;    ///< attention: 1 for the rank's first, and so on; else 0
  int sender = -1;  ///< exchanges: whose message it is, where there is one sender only
};

/// What one rank computes of the q × k square, in cells of many tokens: cells[q·columns + k] is the `order` of the
/// attention step that first computed a pair in that cell, 0 for none.
struct RankView {
  std::vector<Interval> intervals;
  std::vector<int> cells;
  std::int64_t pairs = 0;  ///< visible pairs, summed over the heads it computes
};

struct Simulation {
  int rows = 0, columns = 0;  ///< cells of the queries' and the keys' axis
  std::int64_t batch = 0;     ///< the batch entry that the cells show
  double seconds = 0;
  std::vector<RankView> ranks;

  /// Where a cell is in RankView::cells and in mask_cells.
  [[nodiscard]] std::size_t cell(int row, int column) const {
    return static_cast<std::size_t>(row) * static_cast<std::size_t>(columns) + static_cast<std::size_t>(column);
  }
};

/// Runs the programs of all ranks of one direction, by rank. At most `cells` cells an axis. @throws Error internal
/// where the programs wait for each other, unsupported where there are too many tokens to follow each
[[nodiscard]] Simulation simulate(const Problem& problem, const Shard& shard, const std::vector<Program>& programs,
                                  const Machine& machine, int cells);

/// The same of all ranks' plans, by rank.
[[nodiscard]] Simulation simulate(const std::vector<std::shared_ptr<const Plan>>& plans, bool backward,
                                  const Machine& machine, int cells);

/// Cells of the mask itself: 1 where the cell has a visible pair. The same axes as the simulation's.
[[nodiscard]] std::vector<int> mask_cells(const Problem& problem, const Simulation& axes);

/// Cell of a token on an axis of `cells` cells.
[[nodiscard]] inline int cell_of(std::int64_t token, std::int64_t tokens, int cells) {
  __extension__ using Wide = __int128;  // beyond 2^53 a double would round the last token up, out of the axis
  return static_cast<int>(Wide{token} * cells / tokens);
}

}  // namespace rotunda::cli
