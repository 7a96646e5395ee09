// Which columns the rows of a tile see: slices become runs, in numbers that count from the tile's first row.
#pragma once

#include <cstdint>

#include "kernel/cuda/contract.cuh"
#include "kernel/mma/calls.cuh"
#include "kernel/mma/tiling.hpp"

namespace rotunda::mma {

/// Columns [first, first + count) of the buffer that rows [row_begin, row_end) of the tile see through a band: row r
/// and column c of the run meet where low <= c - r <= high.
struct Run {
  int first, count;
  int row_begin, row_end;
  int low, high;
};
static_assert(sizeof(Run) * kRuns + 16 == kRunBytes);

/// In shared memory.
struct RunList {
  Run at[kRuns];
  int count, padding[3];
};

/// Where a block's tile lies among all of a launch; the rows of a head one after another, so that blocks which run at
/// the same time share their columns.
struct TilePlace {
  std::int64_t first;  ///< row of the buffer
  int head, batch;

  __device__ TilePlace(const Walk& walk, bool last_first) {
    const int n = static_cast<int>(blockIdx.x), tile = n % walk.tiles;
    first = std::int64_t{last_first ? walk.tiles - 1 - tile : tile} * walk.tile_rows;
    head = n / walk.tiles % walk.heads;
    batch = n / walk.tiles / walk.heads;
  }
};

[[nodiscard]] __device__ inline int clamp_offset(std::int64_t offset) {
  constexpr std::int64_t kFar = std::int64_t{1} << 30;  // more than any buffer has rows
  return static_cast<int>(offset > kFar ? kFar : offset < -kFar ? -kFar : offset);
}

/// The slice seen from its keys: these become its rows.
[[nodiscard]] __device__ inline Slice transposed(const Slice& s) {
  return {s.batch, s.k_begin, s.k_len, s.q_begin, s.q_len, s.k_pos, s.q_pos, s.right, s.left};
}

/// The slice's part that lies in `rows` rows of the tile; its count is 0 where there is none.
[[nodiscard]] __device__ inline Run make_run(const Slice& slice, const TilePlace& place, int rows) {
  Run run{};
  const std::int64_t shift = slice.q_begin - place.first;  // the slice's first row, counted from the tile's
  const std::int64_t begin = max(-shift, std::int64_t{0}), end = min(rows - shift, slice.q_len);
  if (slice.batch != place.batch || begin >= end) return run;
  const std::int64_t left = cuda::clamp_edge(slice.left), right = cuda::clamp_edge(slice.right);
  const std::int64_t diagonal = slice.q_pos - slice.k_pos;  // the column at row 0's position
  const std::int64_t first = max(std::int64_t{0}, diagonal + begin - left);
  const std::int64_t after = min(slice.k_len, diagonal + end - 1 + right + 1);
  if (first >= after) return run;
  run.first = static_cast<int>(slice.k_begin + first);
  run.count = static_cast<int>(after - first);
  run.row_begin = static_cast<int>(begin + shift);
  run.row_end = static_cast<int>(end + shift);
  run.low = clamp_offset(diagonal - shift - first - left);
  run.high = clamp_offset(diagonal - shift - first + right);
  return run;
}

/// Makes the runs of slices [first, first + kRuns) that meet the tile, in the order of the slices. Starts and ends with
/// the block in step.
template <bool kTransposed>
__device__ void find_runs(const Walk& walk, const TilePlace& place, int rows, int first, RunList& list) {
  __syncthreads();  // the runs before have been used
  if (threadIdx.x < 32) {
    const int lane = static_cast<int>(threadIdx.x);
    Run run{};
    if (lane < kRuns && first + lane < walk.slice_count) {
      const Slice slice = walk.slices[first + lane];
      run = make_run(kTransposed ? transposed(slice) : slice, place, rows);
    }
    const unsigned found = __ballot_sync(0xffffffffU, run.count > 0);
    if (run.count > 0) list.at[__popc(found & ((1U << lane) - 1))] = run;
    if (lane == 0) list.count = __popc(found);
  }
  __syncthreads();
}

/// Goes through the tiles of a list's runs.
struct Cursor {
  int run = 0, column = 0;

  [[nodiscard]] __device__ bool done(const RunList& list) const { return run >= list.count; }
  __device__ void advance(const RunList& list, int columns) {
    column += columns;
    if (column < list.at[run].count) return;
    column = 0;
    ++run;
  }
};

/// What the rows of the tile see of one tile of columns.
struct Visible {
  int first, count;  ///< columns [first, first + count) of the buffer
  int row_begin, row_end, low, high;

  __device__ Visible(const RunList& list, const Cursor& at, int columns) {
    const Run& run = list.at[at.run];
    first = run.first + at.column;
    count = min(run.count - at.column, columns);
    row_begin = run.row_begin;
    row_end = run.row_end;
    low = run.low - at.column;
    high = run.high - at.column;
  }
  /// Whether every row sees every column.
  [[nodiscard]] __device__ bool full(int rows, int columns) const {
    return row_begin == 0 && row_end == rows && count == columns && low <= 1 - rows && high >= columns - 1;
  }
  /// Row r sees columns [begin(r), end(r)) of the tile.
  [[nodiscard]] __device__ int begin(int r) const { return max(low + r, 0); }
  [[nodiscard]] __device__ int end(int r) const { return r >= row_begin && r < row_end ? min(high + r + 1, count) : 0; }
};

}  // namespace rotunda::mma
