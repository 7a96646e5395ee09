// How the tiles of a launch are cut: which shapes are compiled, and which of them a device has room for.
//
// A block owns a tile of rows and goes through the columns that they see, a tile at a time: query rows and keys in the
// forward pass and for dq, keys and query rows for dk and dv. Tiles lie in shared memory in 16 bits, their rows padded
// to the width of the shape.
#pragma once

#include <cstdint>

namespace rotunda::mma {

/// A compiled shape. A team of kParts warps owns 16·kStrips rows of a tile. Of a tile of scores each of its warps
/// computes kColumns / kParts columns; of the sums, kWidth wide, it holds every kParts-th block of 16 columns.
template <int kWidthOf, int kPartsOf, int kColumnsOf, int kStripsOf, int kTeamsOf, int kBlocksOf = 1>
struct Shape {
  static constexpr int kWidth = kWidthOf, kParts = kPartsOf, kColumns = kColumnsOf, kStrips = kStripsOf;
  static constexpr int kTeamRows = 16 * kStrips;
  static constexpr int kScoreBlocks = kColumns / kParts / 8;  ///< blocks of 8 columns a warp
  static constexpr int kSumBlocks = kWidth / kParts / 8;      ///< the same of sums
  static constexpr int kPitch = 2 * kWidth;                   ///< bytes of a row of a tile
  /// Bytes of a row of weights: eight of them begin in different banks.
  static constexpr int kWeightPitch = 2 * kColumns + 16;
  static constexpr int kTeams = kTeamsOf;  ///< at most
  static constexpr int kMaxThreads = 32 * kParts * kTeams;
  static constexpr int kBlocks = kBlocksOf;  ///< of a multiprocessor, that registers are to suffice for
};

/// Shapes by the width that both head dims fit into. Where the widest leaves too little shared memory, a smaller one.
using Forward64 = Shape<64, 1, 64, 2, 4, 2>;
using Forward128 = Shape<128, 1, 64, 2, 4, 2>;
using Forward256 = Shape<256, 2, 64, 2, 4>;
using Forward512 = Shape<512, 4, 64, 2, 2>;
using Forward512Small = Shape<512, 4, 32, 2, 2>;

using Queries64 = Shape<64, 1, 64, 2, 4, 2>;
using Queries128 = Shape<128, 1, 32, 2, 4, 2>;
using Queries256 = Shape<256, 2, 64, 2, 4>;
using Queries512 = Shape<512, 4, 32, 2, 2>;

using Keys64 = Shape<64, 2, 64, 2, 2, 2>;
using Keys128 = Shape<128, 2, 64, 2, 2, 2>;
using Keys256 = Shape<256, 4, 64, 2, 2>;
using Keys512 = Shape<512, 8, 64, 2, 1>;
using Keys512Small = Shape<512, 4, 32, 1, 2>;

/// The runs of a tile that are known at once (runs.cuh).
constexpr int kRuns = 16;
constexpr int kRunBytes = kRuns * 24 + 16;
constexpr int kSourceBytes = 2 * 24;  ///< where keys and values come from

enum class Pass { forward, queries, keys };

/// A shape, and what of it is chosen at run time.
struct Tiling {
  int width = 0;
  bool small = false;       ///< the smaller shape of that width
  int teams = 0;            ///< of a block
  bool one_buffer = false;  ///< the two tiles that are walked through take turns in one buffer
  int threads = 0;          ///< of a block
  int rows = 0;             ///< of a tile
  int bytes = 0;            ///< shared memory
};

/// The tiling for these head dims on a device that gives a block that much shared memory. Its width is 0 where there is
/// none.
[[nodiscard]] Tiling choose_tiling(Pass pass, int d, int d_v, int shared_bytes);

/// Shared memory of a block.
template <class S>
[[nodiscard]] constexpr int shared_bytes(Pass pass, int teams, bool one_buffer) {
  const int rows = teams * S::kTeamRows;
  const int row_tiles = pass == Pass::forward ? 1 : 2, column_tiles = one_buffer ? 1 : 2;
  // Weights of every team, where its warps share them; otherwise room for one team's, which an unusual path needs. Both
  // P and dS for dk and dv, unless there is one buffer.
  const int weight_rows = (S::kParts > 1 ? rows : S::kTeamRows) * (pass == Pass::keys && !one_buffer ? 2 : 1);
  // Row maxima of each warp, or lse and delta of the columns.
  const int statistics = pass == Pass::forward ? (S::kParts > 1 ? S::kParts * rows : 0)
                         : pass == Pass::keys  ? 2 * S::kColumns
                                               : 0;
  return (row_tiles * rows + column_tiles * S::kColumns) * S::kPitch + weight_rows * S::kWeightPitch + 4 * statistics +
         kRunBytes + (pass == Pass::forward ? kSourceBytes : 0);
}

}  // namespace rotunda::mma
