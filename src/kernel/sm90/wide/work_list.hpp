// The work of a forward call: items of 128 query rows of one head, longest first, made on the device from the slices
// that lie there, so that a captured call follows slices that change.
#pragma once

#include <cstdint>

#include "kernel/kernel.hpp"

namespace rotunda::sm90::wide {

constexpr int kBlockRows = 128;  ///< query rows of an item: 64 of each CTA of a cluster
constexpr int kTileKeys = 128;   ///< key rows that an item takes in at once

/// Query rows [row, row + kBlockRows) of a batch entry, and the slices that they meet: some of [first_slice,
/// last_slice].
struct Block {
  int batch, row;
  int first_slice, last_slice;
  int tiles;  ///< key tiles of an item; 0 where no row sees a key
};

/// In the device's memory.
struct WorkList {
  struct Head {
    int blocks;       ///< those with tiles, which come first
    int group_heads;  ///< heads whose items are side by side, so that L2 holds their keys
    int next;         ///< items that clusters have asked for
  };
  Head* head = nullptr;
  Block* blocks = nullptr;  ///< all of them, longest first
  const Slice* slices = nullptr;
  int slice_count = 0, block_count = 0;
  int batches = 0, rows = 0;       ///< of q
  int* slices_of_block = nullptr;  ///< scratch of the making: tiles, first and last slice of each block
};

[[nodiscard]] std::int64_t work_list_bytes(std::int64_t batches, std::int64_t rows);

/// Enqueues the making of the list in `memory` of that size, 16-byte aligned.
[[nodiscard]] WorkList make_work_list(const ForwardArgs& args, std::byte* memory, Stream stream);

}  // namespace rotunda::sm90::wide
