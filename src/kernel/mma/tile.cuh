// Tiles in shared memory, and products of them on the tensor cores.
//
// A tile's row is a whole number of 128 bytes. Its 16-byte pieces are permuted within them, piece p of row r lying at
// p ^ (r % 8), so that a piece of eight rows that follow each other comes from all banks. The address of a lane's piece
// p + 2s is that of piece p, exclusive-or 32·s, plus 128 for every four s: `lane addresses` below are those of s = 0.
#pragma once

#include <cmath>

#include "kernel/mma/calls.cuh"
#include "kernel/mma/ptx.cuh"
#include "kernel/mma/runs.cuh"
#include "kernel/mma/tiling.hpp"

namespace rotunda::mma {

/// Where a thread stands in its block.
template <class S>
struct Position {
  int warp, lane, team, part;
  int first_row;    ///< of the team
  int row, column;  ///< of a fragment (ptx.cuh, multiply)

  __device__ explicit Position(int thread = static_cast<int>(threadIdx.x))
      : warp(thread / 32),
        lane(thread % 32),
        team(warp / S::kParts),
        part(warp % S::kParts),
        first_row(team * S::kTeamRows),
        row(lane / 4),
        column(lane % 4 * 2) {}

  /// Row of the tile that element 2·half of strip `strip` of a fragment belongs to.
  [[nodiscard]] __device__ int tile_row(int strip, int half) const { return first_row + 16 * strip + 8 * half + row; }
  /// Column of scores of element 0 of block n.
  [[nodiscard]] __device__ int score_column(int n) const { return (part * S::kScoreBlocks + n) * 8 + column; }
  /// Column of sums of element 0 of block n.
  [[nodiscard]] __device__ int sum_column(int n) const { return (n / 2 * S::kParts + part) * 16 + n % 2 * 8 + column; }
  /// Blocks of 16 columns of sums that a warp holds of `dim` columns.
  [[nodiscard]] __device__ int sum_blocks(int dim) const {
    return ((dim + 15) / 16 - part + S::kParts - 1) / S::kParts;
  }
};

[[nodiscard]] __device__ inline std::uint32_t swizzled(int piece, int row) {
  return static_cast<std::uint32_t>((piece >> 3) * 128 + ((piece ^ row) & 7) * 16);  // neither is negative
}

/// Rows of one head in global memory.
struct Source {
  const std::uint16_t* data;
  std::int64_t stride;  ///< elements
  int dim;
  bool vectors;

  Source() = default;
  __device__ Source(const View& view, std::int64_t batch, int head, int width)
      : data(view.at<const std::uint16_t>(batch, 0, head)), stride(view.row), dim(width), vectors(view.vectors) {}
};

/// Eight elements that are not aligned.
__device__ inline void copy_elements(std::uint32_t to, const std::uint16_t* from, bool valid) {
  std::uint32_t words[4] = {};
  for (int i = 0; valid && i < 4; ++i) words[i] = from[2 * i] | static_cast<std::uint32_t>(from[2 * i + 1]) << 16;
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(words[0]), "r"(words[1]), "r"(words[2]),
               "r"(words[3])
               : "memory");
}

/// Begins to copy rows [first, first + valid) to the first of `rows` rows of a tile; the others, and what lies between
/// the dim and the next multiple of 16, become 0.
template <class S>
__device__ void load_rows(const Source& from, std::int64_t first, int valid, int rows, std::uint32_t tile) {
  constexpr int kLanes = S::kWidth / 8 < 32 ? S::kWidth / 8 : 32;  // that share a row
  const int thread = fresh_thread();
  const int first_row = thread / kLanes, step = static_cast<int>(blockDim.x) / kLanes;
#pragma unroll
  for (int p = 0; p < S::kWidth / 8; p += kLanes) {
    const int piece = p + thread % kLanes;
    if (piece * 8 >= (from.dim + 15) / 16 * 16) continue;
    const int real_rows = piece * 8 < from.dim ? valid : 0;
    const std::uint16_t* source = from.data + (first + first_row) * from.stride + piece * 8;
    const std::int64_t hop = step * from.stride;
    const auto place = [&](int row) { return tile + row * S::kPitch + swizzled(piece, row); };
    if (from.vectors) {
#pragma unroll 1
      for (int row = first_row; row < rows;) {  // a multiple of 4·step (tiling.cpp)
#pragma unroll
        for (int i = 0; i < 4; ++i, row += step, source += hop) copy_async(place(row), source, row < real_rows);
      }
    } else {
#pragma unroll 1
      for (int row = first_row; row < rows; row += step, source += hop) {
        copy_elements(place(row), source, row < real_rows);
      }
    }
  }
}

/// The lane address of a tile's rows as the left side of scores.
template <class S>
[[nodiscard]] __device__ std::uint32_t left_address(std::uint32_t tile, const Position<S>& at) {
  return tile + (at.first_row + at.lane % 16) * S::kPitch + swizzled(at.lane / 16, at.lane);
}
/// The same of the right side: the warp's part of the columns.
template <class S>
[[nodiscard]] __device__ std::uint32_t right_address(std::uint32_t tile, const Position<S>& at) {
  const int row = at.part * S::kScoreBlocks * 8 + at.lane % 8 + (S::kScoreBlocks > 1 ? at.lane / 16 * 8 : 0);
  return tile + row * S::kPitch + swizzled(at.lane / 8 % 2, at.lane);
}
/// The same of a tile that weights are multiplied with.
template <class S>
[[nodiscard]] __device__ std::uint32_t sum_address(std::uint32_t tile, const Position<S>& at) {
  return tile + at.lane % 16 * S::kPitch + swizzled(2 * at.part + at.lane / 16, at.lane);
}

template <class S>
using Scores = float[S::kStrips][S::kScoreBlocks][4];
template <class S>
using Sums = float[S::kStrips][S::kSumBlocks][4];

template <class S>
using Left = std::uint32_t[S::kStrips][4];
/// One or two blocks of 8 columns.
template <class S>
using Right = std::uint32_t[S::kScoreBlocks > 1 ? 4 : 2];

template <class S>
__device__ void load_left(std::uint32_t address, Left<S>& a) {
#pragma unroll
  for (int m = 0; m < S::kStrips; ++m) load_blocks(a[m], address + m * 16 * S::kPitch);
}

/// scores of block n and, if there is one, n + 1.
template <class T, class S>
__device__ void multiply_blocks(const Left<S>& a, const Right<S>& b, int n, Scores<S>& scores) {
#pragma unroll
  for (int m = 0; m < S::kStrips; ++m) {
    multiply<T>(scores[m][n], a[m], b[0], b[1]);
    if constexpr (S::kScoreBlocks > 1) multiply<T>(scores[m][n + 1], a[m], b[2], b[3]);
  }
}

/// scores = left·rightᵀ over `dim` elements, from lane addresses. What a product needs is loaded while the one before
/// it runs; the last of these loads is for nothing, but within shared memory.
template <class T, class S>
__device__ void make_scores(std::uint32_t left, std::uint32_t right, int dim, Scores<S>& scores) {
  constexpr int kPairs = S::kScoreBlocks > 1 ? S::kScoreBlocks / 2 : 1;  // of blocks of 8 columns
#pragma unroll
  for (int m = 0; m < S::kStrips; ++m) {
#pragma unroll
    for (int n = 0; n < S::kScoreBlocks; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) scores[m][n][e] = 0;
    }
  }
  Left<S> a[2];
  Right<S> b[2];
  int steps = (dim + 15) / 16;
  load_left<S>(left, a[0]);
  load_blocks(b[0], right);
#pragma unroll 1
  for (; steps >= 4; steps -= 4) {
    const std::uint32_t onward = steps >= 8 ? 128 : 0;
#pragma unroll
    for (std::uint32_t i = 0; i < 4 * kPairs; ++i) {
      const std::uint32_t step = i / kPairs, next = (i + 1) / kPairs;
      const std::uint32_t beyond = next < 4 ? 0 : onward, swap = next % 4 * 32;
      load_blocks(b[(i + 1) % 2], (right ^ swap) + beyond + (i + 1) % kPairs * 16 * S::kPitch);
      if (i % kPairs == 0) {
        const std::uint32_t after = step + 1;
        load_left<S>((left ^ after % 4 * 32) + (after < 4 ? 0 : onward), a[after % 2]);
      }
      multiply_blocks<T, S>(a[step % 2], b[i % 2], static_cast<int>(i % kPairs * 2), scores);
    }
    left += 128;
    right += 128;
  }
#pragma unroll 1
  for (std::uint32_t s = 0; s < steps; ++s) {
    load_left<S>(left ^ s * 32, a[0]);
#pragma unroll
    for (int n = 0; n < kPairs; ++n) {
      load_blocks(b[0], (right ^ s * 32) + n * 16 * S::kPitch);
      multiply_blocks<T, S>(a[0], b[0], n * 2, scores);
    }
  }
}

/// Scores as weights in 16 bits: the two elements of row l / 4 of each block, and those of row l / 4 + 8.
template <class S>
using Weights = std::uint32_t[S::kStrips][S::kScoreBlocks][2];

template <class T, class S>
__device__ void pack_weights(const Scores<S>& scores, Weights<S>& weights) {
#pragma unroll
  for (int m = 0; m < S::kStrips; ++m) {
#pragma unroll
    for (int n = 0; n < S::kScoreBlocks; ++n) {
      weights[m][n][0] = pack<T>(scores[m][n][0], scores[m][n][1]);
      weights[m][n][1] = pack<T>(scores[m][n][2], scores[m][n][3]);
    }
  }
}

/// Where a team's weights lie in shared memory, for those of its warps.
template <class S>
[[nodiscard]] __device__ char* team_weights(char* weights, const Position<S>& at) {
  return weights + (S::kParts > 1 ? at.first_row * S::kWeightPitch : 0);
}

template <class S>
__device__ void store_weights(const Weights<S>& weights, const Position<S>& at, char* to) {
#pragma unroll
  for (int m = 0; m < S::kStrips; ++m) {
#pragma unroll
    for (int n = 0; n < S::kScoreBlocks; ++n) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int row = 16 * m + 8 * h + at.row;
        *reinterpret_cast<std::uint32_t*>(to + row * S::kWeightPitch + at.score_column(n) * 2) = weights[m][n][h];
      }
    }
  }
}

/// The left side of a product, 16 columns of it: from the warp's registers where it has all of them.
template <class S>
__device__ void load_weights(const Weights<S>& weights, std::uint32_t address, int step, Left<S>& a) {
#pragma unroll
  for (int m = 0; m < S::kStrips; ++m) {
    if constexpr (S::kParts == 1) {
      a[m][0] = weights[m][2 * step][0];
      a[m][1] = weights[m][2 * step][1];
      a[m][2] = weights[m][2 * step + 1][0];
      a[m][3] = weights[m][2 * step + 1][1];
    } else {
      load_blocks(a[m], address + m * 16 * S::kWeightPitch + step * 32);
    }
  }
}

/// Where block n of 16 columns of a lane's rows 16·step … lies.
template <class S>
[[nodiscard]] __device__ std::uint32_t sum_block(std::uint32_t tile, int step, int n) {
  const int piece = 2 * S::kParts * n;  // beyond the lane address
  return (tile ^ piece % 8 * 16) + piece / 8 * 128 + step * 16 * S::kPitch;
}

template <class T, class S>
__device__ void multiply_sum_block(const Left<S>& a, const std::uint32_t (&b)[4], int n, Sums<S>& sums) {
#pragma unroll
  for (int m = 0; m < S::kStrips; ++m) {
    multiply<T>(sums[m][2 * n], a[m], b[0], b[1]);
    multiply<T>(sums[m][2 * n + 1], a[m], b[2], b[3]);
  }
}

/// sums += weights·tile for all blocks of 16 columns of the warp: what a product needs is loaded two products ahead.
template <class T, class S>
__device__ void add_all_blocks(const Weights<S>& weights, std::uint32_t weight_address, std::uint32_t tile,
                               Sums<S>& sums) {
  constexpr int kBlocks = S::kSumBlocks / 2, kSteps = S::kColumns / 16, kProducts = kBlocks * kSteps;
  Left<S> a[2];
  std::uint32_t b[3][4];
  load_weights<S>(weights, weight_address, 0, a[0]);
  load_blocks_transposed(b[0], sum_block<S>(tile, 0, 0));
  load_blocks_transposed(b[1], sum_block<S>(tile, 1 / kBlocks, 1 % kBlocks));
#pragma unroll
  for (int i = 0; i < kProducts; ++i) {
    const int step = i / kBlocks, ahead = i + 2;
    if (ahead < kProducts) {
      load_blocks_transposed(b[ahead % 3], sum_block<S>(tile, ahead / kBlocks, ahead % kBlocks));
    }
    if (i % kBlocks == 0 && step + 1 < kSteps) load_weights<S>(weights, weight_address, step + 1, a[(step + 1) % 2]);
    multiply_sum_block<T, S>(a[step % 2], b[i % 3], i % kBlocks, sums);
  }
}

/// The same for the first `blocks` of them.
template <class T, class S>
__device__ void add_blocks(const Weights<S>& weights, std::uint32_t weight_address, std::uint32_t tile, int blocks,
                           Sums<S>& sums) {
#pragma unroll
  for (int step = 0; step < S::kColumns / 16; ++step) {
    Left<S> a;
    load_weights<S>(weights, weight_address, step, a);
#pragma unroll
    for (int n = 0; n < S::kSumBlocks / 2; ++n) {
      if (n >= blocks) continue;
      std::uint32_t b[4];
      load_blocks_transposed(b, sum_block<S>(tile, step, n));
      multiply_sum_block<T, S>(a, b, n, sums);
    }
  }
}

/// sums += weights·tile, `dim` columns wide. `team` are the team's weights in shared memory (unused if it is one warp).
template <class T, class S>
__device__ void add_product(const Weights<S>& weights, const char* team, std::uint32_t tile, int dim,
                            const Position<S>& at, Sums<S>& sums) {
  const std::uint32_t address = shared_address(team) + at.lane % 16 * S::kWeightPitch + at.lane / 16 * 16;
  const int blocks = at.sum_blocks(dim);
  if (blocks == S::kSumBlocks / 2) {
    add_all_blocks<T, S>(weights, address, sum_address<S>(tile, at), sums);
  } else {
    add_blocks<T, S>(weights, address, sum_address<S>(tile, at), blocks, sums);
  }
}

/// Whether a NaN or an infinity is among the first `rows` rows of a tile, for the whole block.
template <class T, class S>
[[nodiscard]] __device__ bool has_bad(const char* tile, int rows, int dim) {
  constexpr std::uint32_t kExponent = std::is_same_v<T, __half> ? 0x7c00 : 0x7f80;
  constexpr int kLanes = S::kWidth / 8 < 32 ? S::kWidth / 8 : 32;  // that share a row
  const auto is_bad = [](std::uint32_t pair) {
    return (pair & kExponent) == kExponent || (pair >> 16 & kExponent) == kExponent;
  };
  bool bad = false;
  const int thread = fresh_thread();
  for (int piece = thread % kLanes; piece * 8 < dim; piece += kLanes) {
#pragma unroll 1
    for (int row = thread / kLanes; row < rows; row += static_cast<int>(blockDim.x) / kLanes) {
      const uint4 pairs = *reinterpret_cast<const uint4*>(tile + row * S::kPitch + swizzled(piece, row));
      bad = bad || is_bad(pairs.x) || is_bad(pairs.y) || is_bad(pairs.z) || is_bad(pairs.w);
    }
  }
  return __syncthreads_or(bad ? 1 : 0) != 0;
}

/// The same as add_product pair by pair and without those that are not visible, for tiles with a NaN or an infinity:
/// 0·NaN is not 0. The sums lie in memory meanwhile, so that this seldom taken way needs no registers.
template <class T, class S>
__device__ void add_visible(const Visible& visible, const char* team, const char* tile, int dim, const Position<S>& at,
                            float* sums) {
#pragma unroll 1
  for (int c = 0; c < visible.count; ++c) {
#pragma unroll 1
    for (int r = 0; r < 2 * S::kStrips; ++r) {
      const int row = at.tile_row(r / 2, r % 2);
      if (c < visible.begin(row) || c >= visible.end(row)) continue;
      const float weight =
          cuda::widen(*reinterpret_cast<const T*>(team + (row - at.first_row) * S::kWeightPitch + 2 * c));
#pragma unroll 1
      for (int n = 0; n < S::kSumBlocks; ++n) {
        const int column = at.sum_column(n);
        if (column >= dim) continue;
        const T* values = reinterpret_cast<const T*>(tile + c * S::kPitch + swizzled(column / 8, c)) + column % 8;
        float* to = sums + (r / 2 * S::kSumBlocks + n) * 4 + r % 2 * 2;
        to[0] += weight * cuda::widen(values[0]);
        to[1] += weight * cuda::widen(values[1]);
      }
    }
  }
}

/// add_visible for every warp; one after another where there is room for one team's weights only.
template <class T, class S>
__device__ void add_visible_in_turn(const Visible& visible, const Weights<S>& weights, char* team, const char* tile,
                                    int dim, const Position<S>& at, Sums<S>& sums) {
  Sums<S> copy;
  memcpy(copy, sums, sizeof copy);
  for (int turn = 0; turn < (S::kParts > 1 ? 1 : static_cast<int>(blockDim.x) / 32); ++turn) {
    if (S::kParts > 1 || turn == at.warp) {
      if constexpr (S::kParts == 1) {
        store_weights<S>(weights, at, team);
        __syncwarp();
      }
      add_visible<T, S>(visible, team, tile, dim, at, &copy[0][0][0]);
    }
    if (S::kParts == 1) __syncthreads();
  }
  memcpy(sums, copy, sizeof copy);
}

/// What a thread holds of a row of fp32.
template <class S>
__device__ void load_sums(const View& view, std::int64_t b, std::int64_t row, int head, int dim, const Position<S>& at,
                          float2 (&values)[S::kSumBlocks]) {
  const float* from = view.at<float>(b, row, head);
#pragma unroll
  for (int n = 0; n < S::kSumBlocks; ++n) {
    const int column = at.sum_column(n);
    values[n] = {0, 0};
    if (column >= dim) continue;
    if (view.vectors) {
      values[n] = *reinterpret_cast<const float2*>(from + column);
    } else {
      values[n] = {from[column], from[column + 1]};
    }
  }
}

/// Writes them in the view's dtype.
template <class T, class S>
__device__ void store_sums(const View& view, std::int64_t b, std::int64_t row, int head, int dim, const Position<S>& at,
                           const float2 (&values)[S::kSumBlocks]) {
  float* const wide = view.at<float>(b, row, head);
  T* const narrow = view.at<T>(b, row, head);
#pragma unroll
  for (int n = 0; n < S::kSumBlocks; ++n) {
    const int column = at.sum_column(n);
    if (column >= dim) continue;
    const float x = values[n].x, y = values[n].y;
    if (view.dtype == DType::fp32) {
      wide[column] = x;
      wide[column + 1] = y;
    } else if (view.vectors) {
      *reinterpret_cast<std::uint32_t*>(narrow + column) = pack<T>(x, y);
    } else {
      narrow[column] = cuda::narrow<T>(x);
      narrow[column + 1] = cuda::narrow<T>(y);
    }
  }
}

}  // namespace rotunda::mma
