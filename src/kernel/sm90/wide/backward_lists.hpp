// The work of one range of query tiles, for any of the heads: score tiles, gradient tiles and the steps of their sums.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernel/sm90/wide/backward_visibility.hpp"
#include "kernel/sm90/wide/backward_work.hpp"

namespace rotunda::sm90::wide {

/// A query tile.
struct TileRow {
  int component, q_tile;
  KeyTiles keys;  ///< it has a pool tile for each

  [[nodiscard]] int tiles() const { return keys.end - keys.begin; }
};

/// All tiles of a call. A cell is kGradientRows keys; cells are numbered through all components.
struct CallTiles {
  explicit CallTiles(std::span<const Slice> slices);

  std::vector<Component> components;
  std::vector<Visibility> seen;  ///< one a component
  std::vector<TileRow> rows;
  std::vector<int> first_cell;  ///< of each component
  int cells = 0;
};

/// Tile rows [begin, end): what a chunk has of the query rows.
struct RowRange {
  std::size_t begin, end;
};

/// The first and the last range that has to do with a cell.
struct CellUse {
  int first = -1, last = -1;
};

/// By cell. One that no query row sees is used by the first range of its component, which zeroes it.
[[nodiscard]] std::vector<CellUse> use_of_cells(const CallTiles& tiles, std::span<const RowRange> ranges);

struct RangeLists {
  std::vector<ScoreCell> score_cells;
  std::vector<TileBand> bands;
  std::vector<GradientCell> dq_cells, dkv_cells;
  std::vector<Run> runs;
  std::vector<std::int32_t> row_tiles;
  std::vector<std::uint64_t> row_masks;
  std::int32_t tiles_per_head = 0;
};

struct RangeTask {
  std::span<const RowRange> ranges;
  std::span<const CellUse> use;
  int range = 0;
  bool init_dq = true, init_dkv = true;
};

[[nodiscard]] RangeLists make_lists(const CallTiles& tiles, const RangeTask& task);

}  // namespace rotunda::sm90::wide
