// The backward pass as chunks that fit a bounded workspace: which score tiles are written, and which steps each
// gradient tile sums, in which order. Host only; nothing here depends on the heads' contents or the device's timing.
//
// A chunk is a number of KV heads with all their query heads and a range of query tiles. It writes P and dS of its
// visible tiles once (scores), then reads them back: dq = dS·K, complete; dk += dSᵀ·Q and dv += Pᵀ·dout, complete with
// the last chunk of a KV head. Every gradient tile has one owner in a chunk and chunks follow each other, so sums have
// one order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernel/sm90/wide/backward_components.hpp"
#include "kernel/sm90/wide/backward_work.hpp"

namespace rotunda::sm90::wide {

/// Bytes of P and dS in a workspace of the default size: what 16k keys need to keep a GPU busy, and more for longer
/// ones, in proportion.
inline constexpr std::int64_t kPoolBytes = 280 << 20;
inline constexpr std::int64_t kPoolBytesPerKey = kPoolBytes / (16 << 10);

/// One backward call, as far as its plan goes.
struct BackwardShape {
  std::vector<Slice> slices;
  std::int64_t batch = 1, rows_q = 0, rows_k = 0;
  int heads_kv = 1, group = 1;  ///< KV heads of the buffers; query heads of one of them
  int d = 0, d_v = 0;
  int workers = 1;  ///< thread blocks that run at once
  bool init_dq = true, init_dkv = true;
  bool narrow_dkv = false;      ///< dk and dv are 16-bit: partial sums need room of their own
  std::int64_t pool_bytes = 0;  ///< at most this for P and dS, unless a single query tile needs more; 0: the default

  bool operator==(const BackwardShape&) const = default;
};

/// Columns that a thread block of a team has, for head dims up to 512.
[[nodiscard]] int gradient_columns(int d, int d_v);
/// The first column of a team's second block: where a line begins, if it has columns enough for the rest.
[[nodiscard]] int second_gradient_column(int d, int d_v);

/// Rows of copies are multiples of so many elements, 128 bytes.
inline constexpr int kPackedColumns = 64;
/// Whether rows of a head dim may begin in the middle of a sector of 32 bytes; boxes that do come at half the pace, and
/// even those that begin with the sector (row_shift.hpp) slower than those that begin with a line.
[[nodiscard]] constexpr bool should_pack(std::int64_t dim) {
  return dim % 16 != 0;
}
[[nodiscard]] constexpr int packed_columns(std::int64_t dim) {
  return static_cast<int>((dim + kPackedColumns - 1) / kPackedColumns * kPackedColumns);
}

/// Where a chunk's lists lie in BackwardPlan::lists, in bytes.
struct ChunkOffsets {
  std::int64_t score_cells = 0, bands = 0, gradient_cells = 0, items = 0, item_first = 0, runs = 0, row_tiles = 0,
               row_masks = 0;
  std::int32_t score_count = 0, tiles_per_head = 0;
  int kv_count = 0;

  /// The lists once they lie at `base`.
  [[nodiscard]] ChunkLists at(const std::byte* base) const;
};

struct BackwardPlan {
  struct Chunk {
    int lists;     ///< index into `offsets`
    int kv_first;  ///< its KV heads are [kv_first, kv_first + kv_count)
  };

  std::vector<std::byte> lists;  ///< all of them, for the device; begins the workspace
  std::vector<ChunkOffsets> offsets;
  std::vector<Chunk> chunks;                  ///< in order
  std::int64_t free_q = 0, free_q_count = 0;  ///< RowSpans in `lists`: rows to be zeroed because no slice has them
  std::int64_t free_k = 0, free_k_count = 0;

  std::int64_t pool_tiles = 0;  ///< in each of the two pools
  int scratch_cells = 0;  ///< of kGradientRows rows: partial dk and dv, where they are 16-bit and several chunks add
  /// Copies of q, k, v and dout of a chunk's heads, [batch, head, row, packed_columns(dim)]: where a head dim asks for
  /// them, unless they would take too much of the workspace.
  bool packs = false;
  std::int64_t q_packed = 0, k_packed = 0, v_packed = 0, dout_packed = 0;    ///< in the workspace
  std::int64_t p_offset = 0, ds_offset = 0, dk_scratch = 0, dv_scratch = 0;  ///< in the workspace
  std::int64_t workspace_bytes = 0;
};

[[nodiscard]] BackwardPlan plan_backward(const BackwardShape& shape);

}  // namespace rotunda::sm90::wide
