#include "kernel/sm90/wide/backward_lists.hpp"

#include <algorithm>

namespace rotunda::sm90::wide {
namespace {

constexpr int kCellBlocks = kGradientRows / kBlock;

/// Score tiles of this many neighbouring query tiles follow each other: their Q, dout and the keys' K, V stay in L2.
constexpr std::size_t kRowsTogether = 16;

/// The query tiles of one component in a range: rows [begin, end) of the call.
struct Stretch {
  std::size_t begin, end;
  int component;
  int first_block, end_block;  ///< blocks of 64 query rows of the component
};

std::vector<Stretch> stretches(const CallTiles& tiles, const RowRange& range) {
  std::vector<Stretch> list;
  for (std::size_t i = range.begin; i < range.end; ++i) {
    const TileRow& row = tiles.rows[i];
    if (list.empty() || list.back().component != row.component) {
      list.push_back({i, i, row.component, row.q_tile * kRowBlocks, 0});
    }
    const int blocks = tiles.seen[static_cast<std::size_t>(row.component)].q_blocks();
    list.back().end = i + 1;
    list.back().end_block = std::min((row.q_tile + 1) * kRowBlocks, blocks);
  }
  return list;
}

bool sees_cell(const Visibility& seen, int q_block, int cell) {
  for (int k = 0; k < kCellBlocks; ++k) {
    if (seen.sees(q_block, cell * kCellBlocks + k)) return true;
  }
  return false;
}

class ListMaker {
 public:
  ListMaker(const CallTiles& tiles, const RangeTask& task) : tiles_(tiles), task_(task) {}

  RangeLists make() {
    for (const Stretch& stretch : stretches(tiles_, task_.ranges[static_cast<std::size_t>(task_.range)])) {
      const auto row_tiles = static_cast<std::int32_t>(lists_.row_tiles.size());
      for (std::size_t i = stretch.begin; i < stretch.end; ++i) {
        lists_.row_tiles.push_back(lists_.tiles_per_head - tiles_.rows[i].keys.begin);
        lists_.tiles_per_head += tiles_.rows[i].tiles();
      }
      for (std::size_t i = stretch.begin; i < stretch.end; i += kRowsTogether) {
        add_scores(stretch, row_tiles, i, std::min(i + kRowsTogether, stretch.end));
      }
      for (std::size_t i = stretch.begin; i < stretch.end; ++i) add_dq(stretch, row_tiles, i);
      for (int cell = 0; cell < seen(stretch).k_cells(); ++cell) add_dkv(stretch, row_tiles, cell);
    }
    return std::move(lists_);
  }

 private:
  [[nodiscard]] const Visibility& seen(const Stretch& stretch) const {
    return tiles_.seen[static_cast<std::size_t>(stretch.component)];
  }
  [[nodiscard]] std::int32_t tile_of(const Stretch& stretch, std::int32_t row_tiles, std::size_t row) const {
    return lists_.row_tiles[static_cast<std::size_t>(row_tiles) + row - stretch.begin];
  }

  /// Tiles of rows [begin, end), key tile by key tile.
  void add_scores(const Stretch& stretch, std::int32_t row_tiles, std::size_t begin, std::size_t end) {
    const Component& component = seen(stretch).component();
    KeyTiles all{seen(stretch).k_blocks(), 0};
    for (std::size_t i = begin; i < end; ++i) {
      if (tiles_.rows[i].tiles() == 0) continue;
      all.begin = std::min(all.begin, tiles_.rows[i].keys.begin);
      all.end = std::max(all.end, tiles_.rows[i].keys.end);
    }
    for (int k = all.begin; k < all.end; ++k) {
      for (std::size_t i = begin; i < end; ++i) {
        const TileRow& row = tiles_.rows[i];
        if (k < row.keys.begin || k >= row.keys.end) continue;
        const auto band_first = static_cast<std::int32_t>(lists_.bands.size());
        if (!seen(stretch).add_bands(row.q_tile, k, lists_.bands)) continue;
        lists_.score_cells.push_back({.tile = tile_of(stretch, row_tiles, i) + k,
                                      .q_row = static_cast<std::int32_t>(component.q_begin) + row.q_tile * kTileRows,
                                      .k_row = static_cast<std::int32_t>(component.k_begin) + k * kTileKeys,
                                      .batch = static_cast<std::int32_t>(component.batch),
                                      .band_first = band_first,
                                      .band_count = static_cast<std::int32_t>(lists_.bands.size()) - band_first,
                                      .parts = parts(seen(stretch), row.q_tile, k)});
      }
    }
  }

  [[nodiscard]] static std::int32_t parts(const Visibility& seen, int q_tile, int k_tile) {
    std::int32_t bits = 0;
    for (int r = 0; r < kRowBlocks; ++r) {
      for (int k = 0; k < kKeyBlocks; ++k) {
        const bool here = seen.sees(q_tile * kRowBlocks + r, k_tile * kKeyBlocks + k);
        if (here) bits |= 1 << (2 * r + k / (kKeyBlocks / 2));
      }
    }
    return bits;
  }

  void add_dq(const Stretch& stretch, std::int32_t row_tiles, std::size_t i) {
    const Visibility& v = seen(stretch);
    const Component& component = v.component();
    const int q_tile = tiles_.rows[i].q_tile;
    GradientCell cell{};
    cell.batch = static_cast<std::int32_t>(component.batch);
    cell.row = static_cast<std::int32_t>(component.q_begin) + q_tile * kGradientRows;
    cell.rows = std::min(kGradientRows, static_cast<int>(component.q_len) - q_tile * kGradientRows);
    cell.inner_row = static_cast<std::int32_t>(component.k_begin);
    cell.tile = tile_of(stretch, row_tiles, i);
    cell.load = task_.init_dq ? 0 : 1;
    cell.last = 1;
    const int block = q_tile * kRowBlocks;
    add_runs(
        cell, 0, v.k_blocks(), [&](int k) { return halves(v.sees(block, k), v.sees(block + 1, k)); },
        [&](int k) { return v.k_rows(k); });
    if (cell.steps > 0 || cell.load == 0) lists_.dq_cells.push_back(cell);
  }

  void add_dkv(const Stretch& stretch, std::int32_t row_tiles, int index) {
    const Visibility& v = seen(stretch);
    const Component& component = v.component();
    GradientCell cell{};
    cell.batch = static_cast<std::int32_t>(component.batch);
    cell.row = static_cast<std::int32_t>(component.k_begin) + index * kGradientRows;
    cell.rows = std::min(kGradientRows, static_cast<int>(component.k_len) - index * kGradientRows);
    cell.inner_row = static_cast<std::int32_t>(component.q_begin);
    cell.tile = index;
    cell.row_tiles = row_tiles - stretch.first_block / kRowBlocks;
    cell.scratch = tiles_.first_cell[static_cast<std::size_t>(stretch.component)] + index;
    const CellUse& use = task_.use[static_cast<std::size_t>(cell.scratch)];
    cell.load = task_.init_dkv && task_.range == use.first ? 0 : 1;
    cell.last = task_.range == use.last ? 1 : 0;
    add_runs(
        cell, stretch.first_block, stretch.end_block,
        [&](int q) { return halves(v.sees(q, kCellBlocks * index), v.sees(q, kCellBlocks * index + 1)); },
        [&](int q) { return v.q_rows(q); });
    const bool here = cell.steps > 0 || (task_.range == use.first && cell.load == 0);
    if (here) lists_.dkv_cells.push_back(cell);
  }

  [[nodiscard]] static int halves(bool first, bool second) { return (first ? 1 : 0) + (second ? 2 : 0); }

  /// The steps of [begin, end) where seen(step), of halves, is not 0, as runs; rows(step) has a bit for each row that
  /// may be read.
  template <class Seen, class Rows>
  void add_runs(GradientCell& cell, int begin, int end, Seen&& seen, Rows&& rows) {
    cell.run_first = static_cast<std::int32_t>(lists_.runs.size());
    int joins = 0;  // the halves of the step before, if its run may become longer
    for (int step = begin; step < end; ++step) {
      const int here = seen(step);
      const bool whole = here != 0 && rows(step) == ~std::uint64_t{0};
      cell.steps += here != 0 ? 1 : 0;
      if (whole && joins == here) {
        ++lists_.runs.back().count;
      } else if (here != 0) {
        const auto clean = static_cast<std::int32_t>(lists_.row_masks.size());
        if (!whole) lists_.row_masks.push_back(rows(step));
        lists_.runs.push_back({step, 1, whole ? -1 : clean, here});
      }
      joins = whole ? here : 0;
    }
    cell.run_count = static_cast<std::int32_t>(lists_.runs.size()) - cell.run_first;
  }

  const CallTiles& tiles_;
  const RangeTask& task_;
  RangeLists lists_;
};

}  // namespace

CallTiles::CallTiles(std::span<const Slice> slices) : components(components_of(slices)) {
  for (const Component& one : components) seen.emplace_back(one);
  for (std::size_t c = 0; c < seen.size(); ++c) {
    first_cell.push_back(cells);
    cells += seen[c].k_cells();
    for (int i = 0; i < seen[c].q_tiles(); ++i) rows.push_back({static_cast<int>(c), i, seen[c].key_tiles(i)});
  }
}

std::vector<CellUse> use_of_cells(const CallTiles& tiles, std::span<const RowRange> ranges) {
  std::vector<CellUse> use(static_cast<std::size_t>(tiles.cells)), component_use(tiles.components.size());
  for (int range = 0; range < static_cast<int>(ranges.size()); ++range) {
    for (const Stretch& stretch : stretches(tiles, ranges[static_cast<std::size_t>(range)])) {
      const auto component = static_cast<std::size_t>(stretch.component);
      if (component_use[component].first < 0) component_use[component] = {range, range};
      for (int cell = 0; cell < tiles.seen[component].k_cells(); ++cell) {
        int block = stretch.first_block;
        while (block < stretch.end_block && !sees_cell(tiles.seen[component], block, cell)) ++block;
        if (block == stretch.end_block) continue;
        CellUse& one = use[static_cast<std::size_t>(tiles.first_cell[component] + cell)];
        if (one.first < 0) one.first = range;
        one.last = range;
      }
    }
  }
  for (std::size_t c = 0; c < tiles.components.size(); ++c) {
    for (int cell = 0; cell < tiles.seen[c].k_cells(); ++cell) {
      CellUse& one = use[static_cast<std::size_t>(tiles.first_cell[c] + cell)];
      if (one.first < 0) one = component_use[c];
    }
  }
  return use;
}

RangeLists make_lists(const CallTiles& tiles, const RangeTask& task) {
  return ListMaker(tiles, task).make();
}

}  // namespace rotunda::sm90::wide
