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

/// For head dims up to 64 · kChunks.
///
/// K, V tiles go through a ring of stages in the order K0 K1 V0 K2 V1 K3 V2 …; a stage holds a slab: 128 keys × 64 of
/// K, or 16 keys × 64 · kChunks of V as [2][kChunks][8 keys][64]. Each CTA of the cluster loads half of each slab for
/// both.
template <int kChunks>
struct Shape {
  /// No more than a tile's slabs of V: a barrier of a slab is armed anew only after its tile has been used.
  static constexpr int kStages = kValueSlabs;
  static constexpr int kChunkCount = kChunks;
  static constexpr int kStageBytes = kTileKeys * 128;
  static constexpr int kValueSlabBytes = kSlabKeys * kChunks * 128;
  static constexpr int kQueryChunkBytes = kRows * 128;
  static constexpr int kWeightBytes = kRows * kTileKeys * 2;  ///< P of a tile
  static constexpr int kTileSlabs = kChunks + kValueSlabs;
  static_assert(kValueSlabBytes <= kStageBytes && kChunks <= kStages);

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
  static constexpr int kValuesFull = kKeysFull + 8 * kConsumers * kChunks;  // [slab]
  static constexpr int kEdgeFull = kValuesFull + 8 * kValueSlabs;
  static constexpr int kStageFree = kEdgeFull + 8 * kValueSlabs;
  static constexpr int kQueryFull = kStageFree + 8 * kStages;  // [chunk]
  static constexpr int kQueryFree = kQueryFull + 8 * kChunks;
  static constexpr int kWeightsFull = kQueryFree + 8 * kChunks;  // [consumer][piece]
  static constexpr int kTileFull = kWeightsFull + 8 * kConsumers * kPieces;
  static constexpr int kTileFree = kTileFull + 8 * kQueue;
  static constexpr int kMailFull = kTileFree + 8 * kQueue;
  static constexpr int kMailFree = kMailFull + 8 * kMail;
  static constexpr int kBytes = kMailFree + 8 * kMail;
  static_assert(kBytes <= 232448, "what a CTA can have");

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
  static constexpr bool kAligned = kChunks == kStages;
};

}  // namespace rotunda::sm90::wide
