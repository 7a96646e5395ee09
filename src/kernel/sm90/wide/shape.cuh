// Sizes of the forward kernel and what its shared memory holds. docs/kernels/wide.md has the pictures.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "kernel/elementwise/cuda/row_tile.cuh"
#include "kernel/sm90/tensor_map.hpp"
#include "kernel/sm90/wide/work_list.hpp"

namespace rotunda::sm90::wide {

constexpr int kCluster = 2;                   ///< CTAs that share keys
constexpr int kRows = kBlockRows / kCluster;  ///< query rows of a CTA
constexpr int kConsumers = 2;                 ///< warpgroups
constexpr int kWarpgroup = 128;               ///< threads
constexpr int kThreads = (1 + kConsumers) * kWarpgroup;
constexpr int kSlabKeys = 16;  ///< key rows of a slab of V
constexpr int kValueSlabs = kTileKeys / kSlabKeys;
constexpr int kPieces = 4;  ///< in which P is handed on
constexpr int kQueue = 8;   ///< tiles that are known ahead
constexpr int kMail = 2;    ///< items that the other CTA is told ahead

/// A call, as the kernel gets it.
struct ForwardCall {
  WorkList list;
  cuda::RowView<float, std::int64_t> acc, lse, lse_low;
  cuda::RowView<std::uint16_t, std::int64_t> out;
  int heads, key_rows;
  int value_dim;     ///< d_v
  int whole_chunks;  ///< of 64 elements in d_v
  HeadMap map;
  float scale;
  float unit;           ///< scale · log2(e)
  float inverse_scale;  ///< 1 / scale
  float* max_logit;
  bool init, last;
};

/// Maps of q, k, v by rows, and of v by its whole chunks of 64.
struct ForwardMaps {
  CUtensorMap q, k, v_rows, v_chunks;
};

/// A tile of keys of an item, as the scheduler hands it to everyone in the CTA.
struct alignas(16) Tile {
  int key, keys;                     ///< its first row of k and v, and how many of its 128 rows some row sees
  int low, high;                     ///< row i of the block sees the tile's keys [i + low, i + high)
  std::uint16_t row_begin, row_end;  ///< rows of the block that see any
  int batch;
  std::uint16_t head, kv_head;  ///< of q, and of k and v
  int row_and_flags;            ///< first row of the block, a multiple of 128, and flags below

  enum Flag : int {
    kFirst = 1,  ///< of its item
    kLast = 2,
    kFirstPair = 4,  ///< one of the first two: a consumer's first
    kLastPair = 8,
    kOddItem = 16,  ///< every second item of the cluster
    kWhole = 32,    ///< all rows of this CTA see all keys
    kEnd = 64,      ///< there are no more; not a tile
  };
  static constexpr int kFlags = kBlockRows - 1;

  __device__ int row() const { return row_and_flags & ~kFlags; }
};
static_assert(sizeof(Tile) == 32);

/// Chunks of 64 that so many columns take.
constexpr int chunks_of(int columns) {
  return (columns + kChunk - 1) / kChunk;
}

/// How a kernel of some chunks shares out its memory. The more bytes of keys are on their way, the longer a copy may
/// take, so the ring gets what Q and P leave.
struct MemoryPlan {
  int unit_bytes;              ///< in which the ring is counted
  int key_units, value_units;  ///< of a slab of K, and of V
  int ring_units;              ///< no slab wraps around the ring's end
  int weight_blocks;           ///< for P of 64 keys each: two of a tile
};
constexpr MemoryPlan memory_plan(int chunks) {
  switch (chunks) {
    case 5: return {.unit_bytes = 2048, .key_units = 8, .value_units = 5, .ring_units = 80, .weight_blocks = 3};
    case 6: return {.unit_bytes = 4096, .key_units = 4, .value_units = 3, .ring_units = 36, .weight_blocks = 4};
    case 7: return {.unit_bytes = 16384, .key_units = 1, .value_units = 1, .ring_units = 9, .weight_blocks = 3};
    default: return {.unit_bytes = 16384, .key_units = 1, .value_units = 1, .ring_units = 8, .weight_blocks = 4};
  }
}

/// For head dims up to 64 · kChunks.
///
/// K, V tiles go through a ring in the order K0 K1 V0 K2 V1 K3 V2 …, slab by slab: 128 keys × 64 of K, or 16 keys × 64
/// · kChunks of V as [2][kChunks][8 keys][64]. Each CTA of the cluster loads half of each slab for both.
template <int kChunks>
struct Shape {
  static constexpr MemoryPlan kPlan = memory_plan(kChunks);
  static constexpr int kChunkCount = kChunks;
  static constexpr int kKeySlabBytes = kTileKeys * 128;
  static constexpr int kValueSlabBytes = kSlabKeys * kChunks * 128;
  static constexpr int kQueryChunkBytes = kRows * 128;
  static constexpr int kWeightBlockBytes = kRows * 128;  ///< P of 64 keys
  static constexpr int kKeyUnits = kPlan.key_units, kValueUnits = kPlan.value_units;
  static constexpr int kKeyTileUnits = kChunks * kKeyUnits, kValueTileUnits = kValueSlabs * kValueUnits;
  static constexpr int kTileUnits = kKeyTileUnits + kValueTileUnits;
  static constexpr int kUnitBytes = kPlan.unit_bytes, kRingUnits = kPlan.ring_units;
  static_assert(kKeySlabBytes <= kKeyUnits * kUnitBytes && kValueSlabBytes <= kValueUnits * kUnitBytes);
  /// A barrier of a slab is armed anew only after its tile has been used, so at most a tile's slabs are on their way;
  /// the last tile's values come right behind the values before them, and only that many are then.
  static_assert(kRingUnits >= kValueTileUnits && kRingUnits >= kKeyTileUnits && kRingUnits <= kTileUnits);
  static constexpr int kLastReserve = kRingUnits - kValueTileUnits;  ///< what is left free then

  // Offsets in shared memory.
  static constexpr int kQuery = 0;
  static constexpr int kRing = kQuery + kChunks * kQueryChunkBytes;
  static constexpr int kWeights = kRing + kRingUnits * kUnitBytes;  // [block]
  static constexpr int kReference =
      kWeights + kPlan.weight_blocks * kWeightBlockBytes;           // [consumer][row] {reference, factor}
  static constexpr int kSum = kReference + kConsumers * kRows * 8;  // [consumer][row]
  static constexpr int kTiles = kSum + kConsumers * kRows * 4;
  static constexpr int kMailbox = kTiles + kQueue * static_cast<int>(sizeof(Tile));
  // Barriers, 8 bytes each.
  static constexpr int kBarriers = kMailbox + 16;
  static constexpr int kKeysFull = kBarriers;                               // [consumer][chunk]
  static constexpr int kKeysFree = kKeysFull + 8 * kConsumers * kChunks;    // [consumer][chunk]
  static constexpr int kValuesFull = kKeysFree + 8 * kConsumers * kChunks;  // [slab]
  static constexpr int kValuesFree = kValuesFull + 8 * kValueSlabs;         // [slab]
  static constexpr int kEdgeFull = kValuesFree + 8 * kValueSlabs;           // [slab]
  static constexpr int kQueryFull = kEdgeFull + 8 * kValueSlabs;            // [chunk]
  static constexpr int kQueryFree = kQueryFull + 8 * kChunks;               // [chunk]
  static constexpr int kWeightsFull = kQueryFree + 8 * kChunks;             // [consumer][piece]
  static constexpr int kTileFull = kWeightsFull + 8 * kConsumers * kPieces;
  static constexpr int kTileFree = kTileFull + 8 * kQueue;
  static constexpr int kMailFull = kTileFree + 8 * kQueue;
  static constexpr int kMailFree = kMailFull + 8 * kMail;
  static constexpr int kBytes = kMailFree + 8 * kMail;
  static_assert(kBytes <= 232448, "what a CTA can have");

  /// The first unit of tile n's keys and of its values. The last tile's values come right behind the values before
  /// them, since there are no further keys.
  static __host__ __device__ constexpr int key_place(int n) {
    return n == 0 ? 0 : (kKeyTileUnits + (n - 1) * kTurn) % kRingUnits;
  }
  static __host__ __device__ constexpr int value_place(int n, bool last) {
    return ((last ? kKeyTileUnits : 2 * kKeyTileUnits) + n * kTurn) % kRingUnits;
  }
  /// The offset in shared memory of a slab: the unit `units` behind unit `first`.
  static __host__ __device__ constexpr int slab(int first, int units) {
    const int unit = first + units;
    return kRing + kUnitBytes * (!kTilesWrap || unit < kRingUnits ? unit : unit - kRingUnits);
  }
  /// The offset of P of tile n's first 64 keys, and how far behind it that of the others is.
  ///
  /// Three blocks are enough: the second half of P(n + 1) takes the block of the first half of P(n). By then both
  /// consumers have used that, as the last piece of P(n) tells: its owner hands it on after P·V of the first half, and
  /// the other one has waited for it.
  static __host__ __device__ constexpr int weight_block(int n) {
    return kWeights + kWeightBlockBytes * (2 * n % kPlan.weight_blocks);
  }
  static __host__ __device__ constexpr int weight_step(int n) {
    const bool wraps = kPlan.weight_blocks % 2 != 0 && 2 * n % kPlan.weight_blocks == kPlan.weight_blocks - 1;
    return kWeightBlockBytes * (wraps ? 1 - kPlan.weight_blocks : 1);
  }

 private:
  static constexpr int kTurn = kTileUnits % kRingUnits;  ///< from a tile to the next
  static constexpr bool kTilesWrap = kRingUnits % kKeyTileUnits != 0 || kValueTileUnits != kKeyTileUnits;
};

}  // namespace rotunda::sm90::wide
