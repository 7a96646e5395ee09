// Sizes of the forward kernel and what its shared memory holds. docs/kernels/wide.md has the pictures.
#pragma once

#include <cuda.h>

#include <algorithm>
#include <cstdint>

#include "kernel/elementwise/cuda/row_tile.cuh"
#include "kernel/sm90/row_shift.hpp"
#include "kernel/sm90/tensor_map.hpp"
#include "kernel/sm90/wide/work_list.hpp"

namespace rotunda::sm90::wide {

constexpr int kCluster = 2;                   ///< CTAs that share keys
constexpr int kRows = kBlockRows / kCluster;  ///< query rows of a CTA
constexpr int kConsumers = 2;                 ///< warpgroups
constexpr int kWarpgroup = 128;               ///< threads
constexpr int kThreads = (1 + kConsumers) * kWarpgroup;
constexpr int kPieces = 4;              ///< in which P is handed on
constexpr int kQueue = 8;               ///< tiles that are known ahead
constexpr int kMail = 2;                ///< items that the other CTA is told ahead
constexpr int kMostShared = 232448;     ///< bytes of shared memory that a CTA can have
constexpr int kMostSmallThings = 2560;  ///< what of them statistics, tiles and barriers take, at most

/// A call, as the kernel gets it.
struct ForwardCall {
  WorkList list;
  cuda::RowView<float, std::int64_t> acc, lse, lse_low;
  cuda::RowView<std::uint16_t, std::int64_t> out;
  int heads, key_rows;
  int value_dim;              ///< d_v
  RowShift k_shift, v_shift;  ///< what Q follows, and O
  HeadMap map;
  float scale;
  float unit;           ///< scale · log2(e)
  float inverse_scale;  ///< 1 / scale
  float* max_logit;
  bool init, last;
};

/// Maps of q, k, v by rows, and of v by its whole chunks of 64: those of its rows, and of rows that are shifted.
struct ForwardMaps {
  CUtensorMap q, k, v_rows, v_chunks, v_shifted_chunks;
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

/// For head dims up to 64 · kChunks.
///
/// K, V tiles go through a ring of stages in the order K0 K1 V0 K2 V1 K3 V2 …; a stage holds a slab: 128 keys × 64 of
/// K, or 16 or 32 keys × 64 · kChunks of V, as [CTA][kChunks][keys of the CTA][64]. Each CTA of the cluster loads half
/// of each slab for both.
template <int kChunks>
struct Shape {
  static constexpr int kChunkCount = kChunks;
  /// Key rows of a slab of V. 32 were faster than 16 where stages of that size fit (docs/kernels/wide.md).
  static constexpr int kSlabKeys = kChunks <= 6 ? 32 : 16;
  static constexpr int kHalfSlabKeys = kSlabKeys / kCluster;
  static constexpr int kValueSlabs = kTileKeys / kSlabKeys;
  static constexpr int kTileSlabs = kChunks + kValueSlabs;
  static constexpr int kKeySlabBytes = kTileKeys * 128;
  static constexpr int kValueSlabBytes = kSlabKeys * kChunks * 128;
  static constexpr int kStageBytes = std::max(kKeySlabBytes, kValueSlabBytes);
  static constexpr int kQueryChunkBytes = kRows * 128;
  static constexpr int kWeightBytes = kRows * kTileKeys * 2;  ///< P of a tile
  /// Barriers of slabs of V, for one tile's or two's. As many stages at most, since the last tile's slabs come right
  /// behind the tile's before: a barrier is armed anew only after its slab has been used.
  static constexpr int kValueBarriers = 8;
  static constexpr int kValueSets = kValueBarriers / kValueSlabs;
  static constexpr int kStages =
      std::min(kValueBarriers,
               (kMostShared - kMostSmallThings - kChunks * kQueryChunkBytes - kConsumers * kWeightBytes) / kStageBytes);
  static_assert(kStages <= kTileSlabs && kValueSlabs % kPieces == 0);

  // Offsets in shared memory.
  static constexpr int kQuery = 0;
  static constexpr int kRing = kQuery + kChunks * kQueryChunkBytes;
  static constexpr int kWeights = kRing + kStages * kStageBytes;           // [consumer]
  static constexpr int kReference = kWeights + kConsumers * kWeightBytes;  // [consumer][row] {reference, factor}
  static constexpr int kSum = kReference + kConsumers * kRows * 8;         // [consumer][row]
  static constexpr int kTiles = kSum + kConsumers * kRows * 4;
  static constexpr int kMailbox = kTiles + kQueue * static_cast<int>(sizeof(Tile));
  // Barriers, 8 bytes each.
  static constexpr int kBarriers = kMailbox + 16;
  static constexpr int kKeysFull = kBarriers;                               // [consumer][chunk]
  static constexpr int kValuesFull = kKeysFull + 8 * kConsumers * kChunks;  // [set][slab]
  static constexpr int kEdgeFull = kValuesFull + 8 * kValueBarriers;        // [set][slab]
  static constexpr int kStageFree = kEdgeFull + 8 * kValueBarriers;
  static constexpr int kQueryFull = kStageFree + 8 * kStages;  // [chunk]
  static constexpr int kQueryFree = kQueryFull + 8 * kChunks;
  static constexpr int kWeightsFull = kQueryFree + 8 * kChunks;  // [consumer][piece]
  static constexpr int kTileFull = kWeightsFull + 8 * kConsumers * kPieces;
  static constexpr int kTileFree = kTileFull + 8 * kQueue;
  static constexpr int kMailFull = kTileFree + 8 * kQueue;
  static constexpr int kMailFree = kMailFull + 8 * kMail;
  static constexpr int kBytes = kMailFree + 8 * kMail;
  static_assert(kBytes <= kMostShared);

  /// The barrier of a slab of tile n's values, behind kValuesFull or kEdgeFull, and the parity that it is awaited with.
  static __host__ __device__ constexpr int value_barrier(int n, int slab) {
    return 8 * (n % kValueSets * kValueSlabs + slab);
  }
  static __host__ __device__ constexpr unsigned value_parity(int n) { return n / kValueSets & 1; }

  /// The stage `slabs` behind stage `first`.
  static __host__ __device__ constexpr int stage(int first, int slabs) {
    const int place = first + slabs;
    return place >= kStages ? place - kStages : place;
  }
  /// The stage of the first slab of tile n's keys and of its values. The last tile's values come right behind the
  /// values before them, since there are no further keys.
  static __host__ __device__ constexpr int key_stage(int n) {
    if constexpr (kAligned) return 0;
    return n == 0 ? 0 : (kChunks + (n - 1) * kTileSlabs) % kStages;
  }
  static __host__ __device__ constexpr int value_stage(int n, bool last) {
    if constexpr (kAligned) return 0;
    return ((last ? kChunks : 2 * kChunks) + n * kTileSlabs) % kStages;
  }

 private:
  /// Whether every slab is always in the stage of its number.
  static constexpr bool kAligned = kChunks == kStages && kValueSlabs == kStages;
};

}  // namespace rotunda::sm90::wide
