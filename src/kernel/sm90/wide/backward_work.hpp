// What the backward kernels work through: plain data, planned on the host (backward_plan.hpp), read on the device.
//
// P and dS of a chunk lie in two pools of tiles, kTileRows query rows by kTileKeys keys in 16 bits, each tile as
// [key block of 64][query row][64 keys]. What belongs to a chunk is the same for all its heads: head h of the chunk has
// the tiles from h · tiles_per_head on.
#pragma once

#include <cstdint>

namespace rotunda::sm90::wide {

inline constexpr int kTileRows = 128, kTileKeys = 256;
inline constexpr int kBlock = 64;  ///< rows or keys of one step of a gradient's sum
inline constexpr int kKeyBlocks = kTileKeys / kBlock, kRowBlocks = kTileRows / kBlock;
inline constexpr int kPoolTileElements = kTileRows * kTileKeys;
inline constexpr int kGradientRows = 128;  ///< query rows or keys of one gradient tile
inline constexpr int kTeam = 2;            ///< thread blocks of a gradient tile, each with half of its columns

/// Teams of so many thread blocks.
constexpr int teams_of(int workers) {
  return workers < kTeam ? 1 : workers / kTeam;
}

/// Rows [row_begin, row_end) of a tile see the keys [key_begin, key_end) with low <= key - row <= high, all counted
/// from the tile's first.
struct TileBand {
  std::int16_t row_begin, row_end, key_begin, key_end, low, high;
  std::int16_t unused[2] = {};
};

/// A tile of scores. Without bands every pair is visible; else those of one of the bands.
struct ScoreCell {
  std::int32_t tile;  ///< of a head's tiles in the pools
  std::int32_t q_row, k_row, batch;
  std::int32_t band_first, band_count;
  std::int32_t parts;  ///< bit 2·r + k: some of the 64 rows r see some of the 128 keys k; other parts are not written
};

/// Steps [first, first + count) of a sum. A step is 64 rows of the summed axis: keys for dq, query rows for dk and dv.
/// clean >= 0: one step, where rows without a set bit in row_masks[clean] count as zeros, whatever memory holds.
/// halves: bit h, the 64 rows h of the gradient tile have visible pairs here; the others have no part in these steps.
struct Run {
  std::int32_t first, count, clean, halves;
};

/// 128 rows of dq, or of dk and dv.
struct GradientCell {
  std::int32_t batch, row, rows;      ///< rows [row, row + rows) of the gradient
  std::int32_t inner_row;             ///< row of step 0 of the summed axis
  std::int32_t tile;                  ///< dq: pool tile of key 0 of step 0; dk, dv: counts the 128 keys from step 0's
  std::int32_t row_tiles;             ///< dk, dv: where row_tiles has the pool tile of key 0 for query tile 0
  std::int32_t run_first, run_count;  ///< in runs
  std::int32_t steps;                 ///< of its runs
  std::int32_t scratch;               ///< dk, dv: its number among all cells of key rows
  std::int32_t load;                  ///< adds to what earlier chunks or the caller left
  std::int32_t last;                  ///< no later chunk adds to it
};

enum class Gradient : std::uint8_t { dq, dk, dv };

/// One gradient tile: the rows of a cell, for a head of the chunk (dq: query head; dk, dv: KV head).
struct GradientItem {
  std::int32_t cell;
  std::uint16_t head;
  Gradient gradient;
  std::uint8_t unused = 0;
};

/// The lists of a chunk. Worker w computes the score tiles w, w + workers, … of all heads, one head after the other;
/// team t computes the gradient items [item_first[t], item_first[t + 1]).
struct ChunkLists {
  const ScoreCell* score_cells;
  const TileBand* bands;
  const GradientCell* gradient_cells;
  const GradientItem* items;
  const std::int32_t* item_first;
  const Run* runs;
  const std::int32_t* row_tiles;
  const std::uint64_t* row_masks;
  std::int32_t score_count, tiles_per_head;
};

}  // namespace rotunda::sm90::wide
