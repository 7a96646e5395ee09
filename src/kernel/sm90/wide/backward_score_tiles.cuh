// The score tiles of a thread block, and what a thread needs to know of its rows of one.
#pragma once

#include "kernel/sm90/wide/backward_params.hpp"

namespace rotunda::sm90::wide {

constexpr float kLog2e = 1.4426950408889634F;

/// The tiles of a thread block, in order. The one after the present is fetched ahead.
class ScoreTiles {
 public:
  __device__ explicit ScoreTiles(const ScoreParams& p) : p_(p), at_(static_cast<int>(blockIdx.x)) { fetch(); }

  /// False when there are no more.
  __device__ bool next() {
    head = next_head_;
    cell = next_cell_;
    if (head < 0) return false;
    at_ += static_cast<int>(gridDim.x);
    fetch();
    return true;
  }

  int head;  ///< of the chunk
  ScoreCell cell;

 private:
  __device__ void fetch() {
    const int end = p_.lists.score_count * p_.heads.kv_count * p_.heads.group;
    next_head_ = -1;
    for (; at_ < end; at_ += static_cast<int>(gridDim.x)) {
      const int head_of_chunk = at_ / p_.lists.score_count;
      if (!p_.heads.has(head_of_chunk)) continue;
      next_head_ = head_of_chunk;
      next_cell_ = p_.lists.score_cells[at_ - head_of_chunk * p_.lists.score_count];
      return;
    }
  }

  const ScoreParams& p_;
  int at_, next_head_;
  ScoreCell next_cell_{};
};

/// Bits [begin, end) of a word; none where the range is empty.
__device__ inline std::uint32_t bits(int begin, int end) {
  begin = max(begin, 0);
  end = min(end, 32);
  return end > begin ? (0xffffffffU >> (32 - (end - begin))) << begin : 0;
}

/// A thread's two rows of a tile, kHalf apart.
struct ScoreRows {
  static constexpr int kHalf = 8;
  float lse[2];  ///< -inf for a row that sees nothing
  float delta[2];
  std::uint32_t seen[2][2];  ///< [row][0, 1]: bit b is key 8·b + 2·(lane % 4) + 0, 1
};

__device__ inline ScoreRows load_rows(const ScoreParams& p, const ScoreTiles& tiles, int row) {
  const ScoreCell& cell = tiles.cell;
  const bool partial = cell.band_count > 0;
  const int column = static_cast<int>(threadIdx.x) % 4 * 2;
  ScoreRows rows;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int r = row + ScoreRows::kHalf * i;
#pragma unroll
    for (int e = 0; e < 2; ++e) rows.seen[i][e] = partial ? 0 : 0xffffffffU;
    for (int n = 0; n < cell.band_count; ++n) {
      const TileBand band = p.lists.bands[cell.band_first + n];
      if (r < band.row_begin || r >= band.row_end) continue;
      const int begin = max(static_cast<int>(band.key_begin), r + band.low);
      const int end = min(static_cast<int>(band.key_end), r + band.high + 1);
#pragma unroll
      for (int e = 0; e < 2; ++e) {  // keys from `column + e` on, eight apart
        rows.seen[i][e] |= bits((begin - column - e + 7) >> 3, (end - column - e + 7) >> 3);
      }
    }
    rows.lse[i] = -INFINITY;
    rows.delta[i] = 0;
    if ((rows.seen[i][0] | rows.seen[i][1]) != 0 || !partial) {
      const int head = p.heads.q_head(tiles.head);
      rows.lse[i] = *p.lse.at<const float>(cell.batch, cell.q_row + r, head);
      rows.delta[i] = *p.delta.at<const float>(cell.batch, cell.q_row + r, head);
    }
  }
  return rows;
}

}  // namespace rotunda::sm90::wide
