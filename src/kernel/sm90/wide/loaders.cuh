// What fills shared memory: a thread for K, a thread for V, and a warp for Q, which also clears rows of V that no row
// may see. A copy takes its thread a while, so that one thread for all would set the pace where slabs are small.
#pragma once

#include "kernel/sm90/ptx/cluster.cuh"
#include "kernel/sm90/ptx/mbarrier.cuh"
#include "kernel/sm90/ptx/registers.cuh"
#include "kernel/sm90/ptx/tma.cuh"
#include "kernel/sm90/tensor_map.hpp"
#include "kernel/sm90/wide/scheduler.cuh"

namespace rotunda::sm90::wide {

/// The stages of the ring as one of its loaders takes them. Slabs go through it in the order K0 K1 V0 K2 V1 K3 V2 …
///
/// Of each slab this CTA loads half, for both CTAs: of K 64 of its rows, of V 8 of its rows.
template <class S>
class RingEnd {
 public:
  static constexpr std::uint16_t kBoth = (1 << kCluster) - 1;

  __device__ explicit RingEnd(std::uint32_t base) : base_(base) {}

  /// Lets slabs of the other loader pass.
  __device__ void pass(int slabs) { at_ += static_cast<std::uint32_t>(slabs); }
  /// Waits for the next stage and arms `full` for a slab of so many bytes; its address.
  __device__ std::uint32_t take(std::uint32_t full, int bytes) {
    const std::uint32_t stage = at_ % S::kStages;
    ptx::mbarrier_wait(base_ + S::kStageFree + 8 * stage, (at_ / S::kStages & 1) ^ 1);
    ptx::mbarrier_arrive_expect(full, bytes);
    ++at_;
    return base_ + S::kRing + S::kStageBytes * stage;
  }

 private:
  std::uint32_t base_, at_ = 0;
};

/// One thread.
template <class S, int kChunks>
__device__ void load_keys(const ForwardCall& call, const ForwardMaps& maps, std::uint8_t* memory) {
  constexpr int kBehind = 4, kHalfRows = kTileKeys / kCluster;
  const std::uint32_t base = ptx::shared_address(memory);
  const int rank = static_cast<int>(ptx::cluster_rank());
  const TileReader<S> tiles(memory);
  RingEnd<S> ring(base);
  for (int n = 0;; ++n) {
    const Tile& tile = tiles.get(n);
    // Keys of tile n get a stage only after values of tile n - 3 have been used by both consumers, which then are
    // through with tile n - 4.
    if (n >= kBehind) tiles.release(n - kBehind);
    if ((tile.row_and_flags & Tile::kEnd) != 0) break;
    std::uint32_t full = base + S::kKeysFull + 8 * kChunks * (n % kConsumers);
    const int row = tile.keys == 0 ? call.key_rows : tile.key + kHalfRows * rank;
    const int head = tile.kv_head, batch = tile.batch;
#pragma unroll 1
    for (int chunk = 0; chunk < kChunks; ++chunk, full += 8) {
      const std::uint32_t slab = ring.take(full, S::kStageBytes) + S::kStageBytes / kCluster * rank;
      ptx::tma_load_multicast(slab, &maps.k, full, ring.kBoth, ptx::Box4{chunk * kChunk, row, head, batch});
    }
    if (n > 0) ring.pass(kValueSlabs);
  }
}

/// One thread. A slab that no row sees is filled with zeros; one that rows see in part goes to the sweeper first.
template <class S, int kChunks>
__device__ void load_values(const ForwardCall& call, const ForwardMaps& maps, std::uint8_t* memory) {
  constexpr int kHalfRows = kSlabKeys / kCluster;
  const std::uint32_t base = ptx::shared_address(memory);
  const int rank = static_cast<int>(ptx::cluster_rank());
  const TileReader<S> tiles(memory);
  RingEnd<S> ring(base);
  ring.pass(kChunks);
  for (int n = 0;; ++n) {
    const Tile tile = tiles.get(n);
    tiles.release(n);
    if ((tile.row_and_flags & Tile::kEnd) != 0) break;
    const bool last = (tiles.get(n + 1).row_and_flags & Tile::kEnd) != 0;
    if (!last) ring.pass(kChunks);
#pragma unroll 1
    for (int i = 0; i < kValueSlabs; ++i) {
      const int seen = tile.keys - i * kSlabKeys;
      const bool edge = seen > 0 && seen < kSlabKeys;
      const std::uint32_t full = base + (edge ? S::kEdgeFull : S::kValuesFull) + 8 * i;
      const std::uint32_t slab = ring.take(full, S::kValueSlabBytes) + S::kValueSlabBytes / kCluster * rank;
      const int row = seen <= 0 ? call.key_rows : tile.key + i * kSlabKeys + kHalfRows * rank;
      ptx::tma_load_multicast(slab, &maps.v_chunks, full, ring.kBoth, ptx::Box5{0, row, 0, tile.kv_head, tile.batch});
      for (int chunk = call.whole_chunks; chunk < kChunks; ++chunk) {
        ptx::tma_load_multicast(slab + chunk * kHalfRows * 128, &maps.v_rows, full, ring.kBoth,
                                ptx::Box4{chunk * kChunk, row, tile.kv_head, tile.batch});
      }
    }
  }
}

/// One thread; of the first tile of an item.
template <class S, int kChunks>
__device__ void load_queries(const ForwardMaps& maps, std::uint32_t base, const Tile& tile) {
  const std::uint32_t parity = (tile.row_and_flags & Tile::kOddItem) != 0 ? 1 : 0;
  const int row = tile.row() + kRows * static_cast<int>(ptx::cluster_rank());
#pragma unroll 1
  for (int chunk = 0; chunk < kChunks; ++chunk) {
    const std::uint32_t full = base + S::kQueryFull + 8 * chunk;
    ptx::mbarrier_wait(base + S::kQueryFree + 8 * chunk, parity ^ 1);
    ptx::mbarrier_arrive_expect(full, S::kQueryChunkBytes);
    ptx::tma_load(base + S::kQuery + S::kQueryChunkBytes * chunk, &maps.q, full,
                  ptx::Box4{chunk * kChunk, row, tile.head, tile.batch});
  }
}

/// Rows of V from `begin` on in a slab of 16, by a warp.
template <int kChunks>
__device__ void clear_rows(std::uint8_t* slab, int begin) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  for (int row = begin; row < kSlabKeys; ++row) {
    for (int i = lane; i < kChunks * 8; i += 32) {  // 16 bytes each, 8 of them a chunk's row
      const int at = ((row / 8 * kChunks + i / 8) * 8 + row % 8) * 128 + i % 8 * 16;
      *reinterpret_cast<uint4*>(slab + at) = uint4{};
    }
  }
}

/// One warp loads Q, and sweeps V: the copy engine brings whole slabs, rows behind the last that is seen may hold
/// anything, and 0 · NaN is NaN.
template <class S, int kChunks>
__device__ void load_queries_and_sweep_values(const ForwardMaps& maps, std::uint8_t* memory) {
  const std::uint32_t base = ptx::shared_address(memory);
  const TileReader<S> tiles(memory);
  std::uint32_t parities = 0;  // a bit a slab
  for (int n = 0;; ++n) {
    const Tile tile = tiles.get(n);
    __syncwarp();
    if (ptx::elect_lane()) tiles.release(n);
    if ((tile.row_and_flags & Tile::kEnd) != 0) break;
    if ((tile.row_and_flags & Tile::kFirst) != 0 && ptx::elect_lane()) load_queries<S, kChunks>(maps, base, tile);
    __syncwarp();
    if (tile.keys % kSlabKeys == 0) continue;
    const bool last = (tiles.get(n + 1).row_and_flags & Tile::kEnd) != 0;
    const int slab = tile.keys / kSlabKeys, stage = S::stage(S::value_stage(n, last), slab);
    ptx::mbarrier_wait(base + S::kEdgeFull + 8 * slab, parities >> slab & 1);
    parities ^= 1U << slab;
    clear_rows<kChunks>(memory + S::kRing + S::kStageBytes * stage, tile.keys % kSlabKeys);
    ptx::fence_async_proxy();
    __syncwarp();
    if (ptx::elect_lane()) ptx::mbarrier_arrive(base + S::kValuesFull + 8 * slab);
  }
}

}  // namespace rotunda::sm90::wide
