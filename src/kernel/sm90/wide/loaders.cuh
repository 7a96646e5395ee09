// What fills shared memory: a thread for K and V, a thread for Q, and a warp that clears rows of V which no row may
// see.
#pragma once

#include "kernel/sm90/ptx/cluster.cuh"
#include "kernel/sm90/ptx/mbarrier.cuh"
#include "kernel/sm90/ptx/registers.cuh"
#include "kernel/sm90/ptx/tma.cuh"
#include "kernel/sm90/tensor_map.hpp"
#include "kernel/sm90/wide/scheduler.cuh"

namespace rotunda::sm90::wide {

/// Of each slab this CTA loads half of the rows, for both CTAs.
template <class S, int kChunks>
class KeyLoader {
 public:
  __device__ KeyLoader(const ForwardCall& call, const ForwardMaps& maps, std::uint8_t* memory)
      : call_(call),
        maps_(maps),
        tiles_(memory),
        base_(ptx::shared_address(memory)),
        rank_(static_cast<int>(ptx::cluster_rank())) {}

  /// K0 K1 V0 K2 V1 K3 V2 …
  __device__ void run() { call_.k_shift.any() || call_.v_shift.any() ? run<true>() : run<false>(); }

 private:
  /// kShifts: whether some heads' rows are shifted. To know that none are makes every slab cheaper.
  template <bool kShifts>
  __device__ void run() {
    Place values{};
    int n = 0;
    for (;; ++n) {
      const Tile& tile = tiles_.get(n);
      // Keys of tile n get a stage only after values of tile n - 3 have been used by both consumers, which then are
      // through with tile n - 4.
      if (n >= kBehind) tiles_.release(n - kBehind);
      if ((tile.row_and_flags & Tile::kEnd) != 0) break;
      const Place keys{tile.key, tile.keys, tile.kv_head, tile.batch};
      load_keys<kShifts>(n, keys);
      if (n > 0) load_values<kShifts>(n - 1, values);
      values = keys;
    }
    if (n > 0) load_values<kShifts>(n - 1, values);
  }

  static constexpr int kBehind = 4;
  static constexpr std::uint16_t kBoth = (1 << kCluster) - 1;

  struct Place {
    int key, keys, head, batch;
  };

  /// Waits for the next stage and arms `full` for a slab of so many bytes; its address.
  __device__ std::uint32_t take_stage(std::uint32_t full, int bytes) {
    ptx::mbarrier_wait(base_ + S::kStageFree + 8 * stage_, parity_ ^ 1);
    ptx::mbarrier_arrive_expect(full, bytes);
    const std::uint32_t slab = base_ + S::kRing + S::kStageBytes * stage_;
    if (++stage_ == S::kStages) {
      stage_ = 0;
      parity_ ^= 1;
    }
    return slab;
  }

  template <bool kShifts>
  __device__ void load_keys(int n, const Place& at) {
    constexpr int kHalfRows = kTileKeys / kCluster;
    std::uint32_t full = base_ + S::kKeysFull + 8 * kChunks * (n % kConsumers);
    const int row = at.keys == 0 ? call_.key_rows : at.key + kHalfRows * rank_;
    const int shift = kShifts ? call_.k_shift.of(at.head) : 0;
#pragma unroll 1
    for (int chunk = 0; chunk < kChunks; ++chunk, full += 8) {
      const std::uint32_t slab = take_stage(full, S::kKeySlabBytes);
      ptx::tma_load_multicast(slab + S::kKeySlabBytes / kCluster * rank_, &maps_.k, full, kBoth,
                              ptx::Box4{chunk * kChunk - shift, row, at.head, at.batch});
    }
  }

  /// A slab that no row sees is filled with zeros; one that rows see in part goes to the sweeper first.
  template <bool kShifts>
  __device__ void load_values(int n, const Place& at) {
    const int shift = kShifts ? call_.v_shift.of(at.head) : 0, whole_chunks = (call_.value_dim + shift) / kChunk;
    const CUtensorMap* const chunks = shift == 0 ? &maps_.v_chunks : &maps_.v_shifted_chunks;
    const int head_of_chunks = shift == 0 ? at.head : at.head >> call_.v_shift.odd_head;
#pragma unroll 1
    for (int i = 0; i < S::kValueSlabs; ++i) {
      const int seen = at.keys - i * S::kSlabKeys;
      const bool edge = seen > 0 && seen < S::kSlabKeys;
      const std::uint32_t full = base_ + (edge ? S::kEdgeFull : S::kValuesFull) + S::value_barrier(n, i);
      const std::uint32_t slab = take_stage(full, S::kValueSlabBytes) + S::kValueSlabBytes / kCluster * rank_;
      const int row = seen <= 0 ? call_.key_rows : at.key + i * S::kSlabKeys + S::kHalfSlabKeys * rank_;
      ptx::tma_load_multicast(slab, chunks, full, kBoth, ptx::Box5{0, row, 0, head_of_chunks, at.batch});
      for (int chunk = whole_chunks; chunk < kChunks; ++chunk) {
        ptx::tma_load_multicast(slab + chunk * S::kHalfSlabKeys * 128, &maps_.v_rows, full, kBoth,
                                ptx::Box4{chunk * kChunk - shift, row, at.head, at.batch});
      }
    }
  }

  const ForwardCall& call_;
  const ForwardMaps& maps_;
  TileReader<S> tiles_;
  std::uint32_t base_;
  int rank_;
  int stage_ = 0;
  std::uint32_t parity_ = 0;
};

template <class S, int kChunks>
__device__ void load_queries(const ForwardCall& call, const ForwardMaps& maps, std::uint8_t* memory) {
  const std::uint32_t base = ptx::shared_address(memory);
  const int rank = static_cast<int>(ptx::cluster_rank());
  const TileReader<S> tiles(memory);
  for (int n = 0;; ++n) {
    const Tile tile = tiles.get(n);
    tiles.release(n);
    if ((tile.row_and_flags & Tile::kEnd) != 0) break;
    if ((tile.row_and_flags & Tile::kFirst) == 0) continue;
    const std::uint32_t parity = (tile.row_and_flags & Tile::kOddItem) != 0 ? 1 : 0;
    const int shift = call.k_shift.of(tile.kv_head);
#pragma unroll 1
    for (int chunk = 0; chunk < kChunks; ++chunk) {
      const std::uint32_t full = base + S::kQueryFull + 8 * chunk;
      ptx::mbarrier_wait(base + S::kQueryFree + 8 * chunk, parity ^ 1);
      ptx::mbarrier_arrive_expect(full, S::kQueryChunkBytes);
      ptx::tma_load(base + S::kQuery + S::kQueryChunkBytes * chunk, &maps.q, full,
                    ptx::Box4{chunk * kChunk - shift, tile.row() + kRows * rank, tile.head, tile.batch});
    }
  }
}

/// The copy engine brings whole slabs: rows behind the last that is seen may hold anything, and 0 · NaN is NaN. One
/// warp.
template <class S, int kChunks>
__device__ void sweep_values(std::uint8_t* memory) {
  const std::uint32_t base = ptx::shared_address(memory);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const TileReader<S> tiles(memory);
  std::uint32_t parities = 0;  // a bit a barrier
  for (int n = 0;; ++n) {
    const Tile tile = tiles.get(n);
    __syncwarp();
    if (lane == 0) tiles.release(n);
    if ((tile.row_and_flags & Tile::kEnd) != 0) break;
    if (tile.keys % S::kSlabKeys == 0) continue;
    const bool last = (tiles.get(n + 1).row_and_flags & Tile::kEnd) != 0;
    const int slab = tile.keys / S::kSlabKeys, stage = S::stage(S::value_stage(n, last), slab);
    const int barrier = S::value_barrier(n, slab);
    ptx::mbarrier_wait(base + S::kEdgeFull + barrier, parities >> barrier / 8 & 1);
    parities ^= 1U << barrier / 8;
    std::uint8_t* const values = memory + S::kRing + S::kStageBytes * stage;
    for (int row = tile.keys % S::kSlabKeys; row < S::kSlabKeys; ++row) {
      for (int i = lane; i < kChunks * 8; i += 32) {  // 16 bytes each, 8 of them a chunk's row
        constexpr int kHalf = S::kHalfSlabKeys;
        const int at = ((row / kHalf * kChunks + i / 8) * kHalf + row % kHalf) * 128 + i % 8 * 16;
        *reinterpret_cast<uint4*>(values + at) = uint4{};
      }
    }
    ptx::fence_async_proxy();
    __syncwarp();
    if (lane == 0) ptx::mbarrier_arrive(base + S::kValuesFull + barrier);
  }
}

}  // namespace rotunda::sm90::wide
