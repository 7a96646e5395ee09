// The scheduler: one thread a CTA that asks for items and turns them into tiles, some tiles ahead of everyone else.
//
// The first CTA of a cluster draws the number of the next item and tells the second; which cluster gets an item has no
// bearing on its bits. Longest first and first come, first served keeps the end short.
#pragma once

#include "kernel/sm90/ptx/cluster.cuh"
#include "kernel/sm90/ptx/mbarrier.cuh"
#include "kernel/sm90/ptx/tma.cuh"
#include "kernel/sm90/tensor_map.hpp"
#include "kernel/sm90/wide/segment.cuh"
#include "kernel/sm90/wide/shape.cuh"

namespace rotunda::sm90::wide {

template <class S>
class Scheduler {
 public:
  __device__ Scheduler(const ForwardCall& call, const ForwardMaps& maps, std::uint8_t* memory)
      : call_(call), maps_(maps), memory_(memory), base_(ptx::shared_address(memory)), rank_(ptx::cluster_rank()) {}

  __device__ void run() {
    ptx::wait_for_prerequisites();
    const WorkList::Head head = *call_.list.head;
    const int items = head.blocks * call_.heads;
    for (int n = 0, item = first_item(); item < items; item = next_item(n++)) add_item(head, n, item);
    // Both consumers look for the end at the place of their next tile.
    for (int i = 0; i < kConsumers; ++i) put(Tile{.row_and_flags = Tile::kEnd});
  }

 private:
  __device__ int first_item() const { return static_cast<int>(blockIdx.x) / kCluster; }

  /// The cluster's item after its n-th.
  __device__ int next_item(int n) {
    const int slot = n % kMail;
    const std::uint32_t parity = n / kMail & 1;
    const std::uint32_t full = base_ + S::kMailFull + 8 * slot, free = base_ + S::kMailFree + 8 * slot;
    const std::uint32_t mail = base_ + S::kMailbox + 4 * slot;
    if (rank_ == 0) {
      const int item = atomicAdd(&call_.list.head->next, 1) + static_cast<int>(gridDim.x) / kCluster;
      ptx::mbarrier_wait(free, parity ^ 1);
      ptx::store_remote(mail, full, 1, item);
      return item;
    }
    ptx::mbarrier_arrive_expect(full, sizeof(int));
    ptx::mbarrier_wait(full, parity);
    const int item = *reinterpret_cast<volatile int*>(memory_ + S::kMailbox + 4 * slot);
    ptx::mbarrier_arrive_remote(free, 0);
    return item;
  }

  /// Items go by groups of heads; in a group by blocks, longest first; the group's heads side by side.
  __device__ void add_item(const WorkList::Head& head, int n, int item) {
    const int in_group = head.blocks * head.group_heads, group = item / in_group;
    const int heads = min(head.group_heads, call_.heads - group * head.group_heads);
    const int of_group = item - group * in_group;
    const Block block = call_.list.blocks[of_group / heads];
    const int q_head = group * head.group_heads + of_group % heads;
    const int parity = n % 2 == 1 ? Tile::kOddItem : 0;
    const int kv_head = call_.map.kv(q_head);
    int added = 0;
    const auto add = [&](Tile tile) {
      tile.batch = block.batch;
      tile.head = static_cast<std::uint16_t>(q_head);
      tile.kv_head = static_cast<std::uint16_t>(kv_head);
      tile.row_and_flags = block.row | parity | (added == 0 ? Tile::kFirst : 0) | (added < 2 ? Tile::kFirstPair : 0) |
                           (added >= block.tiles - 2 ? Tile::kLastPair : 0) |
                           (added == block.tiles - 1 ? Tile::kLast : 0) | (whole(tile) ? Tile::kWhole : 0);
      if (tile.keys > 0) prefetch(tile);
      put(tile);
      ++added;
    };
    for (int i = block.first_slice; i <= block.last_slice; ++i) {
      if (call_.list.slices[i].batch != block.batch) continue;
      const Segment segment = segment_of(call_.list.slices[i], block.row);
      for (int t = segment.tiles() - 1; t >= 0; --t) {
        const int key = segment.key_begin + t * kTileKeys;
        add({.key = key,
             .keys = min(kTileKeys, segment.key_end - key),
             .low = static_cast<int>(clamp_to(std::int64_t{segment.low} - key, kFarRow)),
             .high = static_cast<int>(clamp_to(std::int64_t{segment.high} - key, kFarRow)),
             .row_begin = static_cast<std::uint16_t>(segment.row_begin),
             .row_end = static_cast<std::uint16_t>(segment.row_end)});
      }
    }
    while (added < block.tiles) add({.key = call_.key_rows});  // beyond the buffer: zeros, not read from memory
  }

  /// Asks L2 for a part of the tile, by the cluster's number: neighbours, which are at about the same keys, ask for
  /// others. Beyond the last key there is nothing to bring; what a shifted row has before its begin is left out.
  __device__ void prefetch(const Tile& tile) const {
    constexpr int kShares = std::max(S::kChunkCount, S::kValueSlabs);
    const int share = static_cast<int>(blockIdx.x) / kCluster % kShares, rank = static_cast<int>(rank_);
    const int key = tile.key + kTileKeys / kCluster * rank;
    const int value = tile.key + S::kSlabKeys * share + S::kHalfSlabKeys * rank;
    if (share < S::kChunkCount && key < call_.key_rows) {
      ptx::tma_prefetch(&maps_.k, ptx::Box4{kChunk * share, key, tile.kv_head, tile.batch});
    }
    if (share < S::kValueSlabs && value < call_.key_rows) {
      ptx::tma_prefetch(&maps_.v_chunks, ptx::Box5{0, value, 0, tile.kv_head, tile.batch});
    }
  }

  /// Whether all rows of this CTA see all keys of the tile.
  __device__ bool whole(const Tile& tile) const {
    const int first = static_cast<int>(rank_) * kRows, last = first + kRows - 1;
    return tile.keys == kTileKeys && tile.row_begin <= first && tile.row_end > last && last + tile.low <= 0 &&
           first + tile.high >= kTileKeys;
  }

  /// A slot is free again when the loaders and the sweeper have said so (loaders.cuh).
  __device__ void put(const Tile& tile) {
    const int slot = put_ % kQueue;
    ptx::mbarrier_wait(base_ + S::kTileFree + 8 * slot, (put_ / kQueue & 1) ^ 1);
    reinterpret_cast<Tile*>(memory_ + S::kTiles)[slot] = tile;
    ptx::mbarrier_arrive(base_ + S::kTileFull + 8 * slot);
    ++put_;
  }

  const ForwardCall& call_;
  const ForwardMaps& maps_;
  std::uint8_t* memory_;
  std::uint32_t base_, rank_;
  int put_ = 0;  ///< tiles so far
};

/// Walks through the tiles that the scheduler puts, until the end.
template <class S>
class TileReader {
 public:
  __device__ explicit TileReader(std::uint8_t* memory) : memory_(memory), base_(ptx::shared_address(memory)) {}

  /// Tile n, once it is there: n must be the next but one of the reader's last, or nearer.
  __device__ const Tile& get(int n) const {
    ptx::mbarrier_wait(base_ + S::kTileFull + 8 * (n % kQueue), n / kQueue & 1);
    return known(n);
  }
  /// A tile that something this thread waited for came after.
  __device__ const Tile& known(int n) const { return reinterpret_cast<const Tile*>(memory_ + S::kTiles)[n % kQueue]; }
  __device__ void release(int n) const { ptx::mbarrier_arrive(base_ + S::kTileFree + 8 * (n % kQueue)); }

 private:
  std::uint8_t* memory_;
  std::uint32_t base_;
};

}  // namespace rotunda::sm90::wide
