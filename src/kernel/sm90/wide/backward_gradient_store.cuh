// Gradient tiles from accumulators to memory.
#pragma once

#include "kernel/sm90/ptx/bulk.cuh"
#include "kernel/sm90/ptx/global.cuh"
#include "kernel/sm90/ptx/registers.cuh"
#include "kernel/sm90/ptx/tma.cuh"
#include "kernel/sm90/wide/backward_gradient_producer.cuh"

namespace rotunda::sm90::wide {

/// A thread's part of a tile: rows and columns as wgmma leaves them. Whole fp32 tiles go through shared memory, from
/// where the copy engine takes them while the next tile is worked on; all others straight to memory.
template <class T, int kColumns>
class GradientStore {
 public:
  /// `memory`: a shared address, kStorePerWarp bytes for each warp.
  __device__ GradientStore(const float (&acc)[kColumns / 2], std::uint32_t memory, int warpgroup, int thread)
      : acc_(acc),
        memory_(memory +
                static_cast<std::uint32_t>(4 * warpgroup + thread / 32) * GradientShape<kColumns>::kStorePerWarp),
        warpgroup_(warpgroup),
        thread_(thread) {}

  /// All is in memory when this returns.
  __device__ void finish() const {
    if (ptx::elect_lane()) ptx::bulk_wait<0>();
  }

  /// `empty`: the tile had no steps, and acc holds nothing.
  __device__ void tile(const GradientParams& p, const GradientWork& work, int head, bool empty) const {
    const GradientOutput& out = p.output(work.item.gradient);
    const GradientCell& cell = work.cell;
    const OwnColumns own = own_columns<kColumns>(p);
    const int column = own.first - shift_of(p.heads, out, work.item), end = min(out.dim, column + own.count);
    // A box that begins before its row is an illegal instruction.
    if (kColumns % kBoxColumns == 0 && column >= 0 && out.mapped && !empty && cell.rows == kGradientRows) {
      return store_boxes(out, work, head, column, own.count);
    }
    const int first = column + thread_ % 4 * 2;
    const bool whole = column >= 0 && end == column + kColumns;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = 64 * warpgroup_ + thread_ / 32 * 16 + thread_ % 32 / 4 + 8 * i;
      if (row >= cell.rows) continue;
      Place to{.sum = out.to.at<float>(cell.batch, cell.row + row, head) + first,
               .final = out.to.at<T>(cell.batch, cell.row + row, head) + first,
               .scale = out.scale,
               .begin = column < 0 ? -column : 0,
               .width = end - first,
               .load = cell.load != 0,
               .narrow = out.narrow && cell.last != 0};
      if (out.narrow) to.sum = out.scratch + (std::int64_t{cell.scratch} * kGradientRows + row) * out.dim + first;
      if (empty || !out.aligned) {
        store_elements(to, i, empty);
      } else {
        whole ? store_pairs<true>(to, i) : store_pairs<false>(to, i);
      }
    }
  }

 private:
  static constexpr int kBoxColumns = 32;  ///< fp32, 128 bytes

  /// The warp's 16 rows, some boxes of 32 columns at a time.
  __device__ void store_boxes(const GradientOutput& out, const GradientWork& work, int head, int first,
                              int count) const {
    constexpr std::uint32_t kBox = GradientShape<kColumns>::kBoxOfStore;
    constexpr int kBoxes = GradientShape<kColumns>::kStoreBoxes;
    const int lane = thread_ % 32, row = lane / 4, place = lane % 4;
    const int first_row = work.cell.row + 64 * warpgroup_ + thread_ / 32 * kStoreRows;
#pragma unroll
    for (int column = 0; column < kColumns; column += kBoxes * kBoxColumns) {
      if (ptx::elect_lane()) ptx::bulk_wait_read<0>();
      __syncwarp();
#pragma unroll
      for (int g = column / 8; g < min(column + kBoxes * kBoxColumns, kColumns) / 8; ++g) {
        const int box = (g - column / 8) / 4, chunk = g % 4 * 2 + place / 2;  // chunks of 16 bytes, swizzled by the row
        const std::uint32_t to = memory_ + box * kBox + row * 128 + ((chunk ^ row) << 4) + place % 2 * 8;
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const float x = acc_[4 * g + 2 * i] * out.scale, y = acc_[4 * g + 2 * i + 1] * out.scale;
          ptx::store_shared(to + i * 8 * 128, float2{x, y});
        }
      }
      ptx::fence_async_proxy();
      __syncwarp();
      if (!ptx::elect_lane()) continue;
#pragma unroll
      for (int box = 0; box < kBoxes; ++box) {
        if (column + box * kBoxColumns >= count) break;
        const ptx::Box4 at{first + column + box * kBoxColumns, first_row, head, work.cell.batch};
        work.cell.load != 0 ? ptx::tma_add(&out.map, at, memory_ + box * kBox)
                            : ptx::tma_store(&out.map, at, memory_ + box * kBox);
      }
      ptx::bulk_commit();
    }
  }

  /// Where a row of this thread goes: sums of 16-bit gradients stay in scratch until no later chunk adds to them.
  struct Place {
    float* sum;
    T* final;
    float scale;
    int begin, width;  ///< columns, from the thread's first, before the row and to the end of what the block has
    bool load, narrow;
  };

  [[nodiscard]] __device__ float2 pair(const Place& to, int g, int i) const {
    return {acc_[4 * g + 2 * i] * to.scale, acc_[4 * g + 2 * i + 1] * to.scale};
  }

  /// Calls body(g) for the groups of eight columns that exist: all of them (kWhole), or those within the row.
  template <bool kWhole, class Body>
  __device__ static void each_group(const Place& to, int begin, int end, Body&& body) {
#pragma unroll
    for (int g = begin; g < end; ++g) {
      if (kWhole || (8 * g >= to.begin && 8 * g < to.width)) body(g);
    }
  }

  /// By pairs of columns.
  template <bool kWhole>
  __device__ void store_pairs(const Place& to, int i) const {
    constexpr int kGroups = kColumns / 8;
    if (to.narrow) return narrow_pairs<kWhole>(to, i);
    if (to.load) {
      each_group<kWhole>(to, 0, kGroups, [&](int g) { ptx::add_global(to.sum + 8 * g, pair(to, g, i)); });
    } else {
      each_group<kWhole>(to, 0, kGroups, [&](int g) { *reinterpret_cast<float2*>(to.sum + 8 * g) = pair(to, g, i); });
    }
  }

  /// What ends in 16 bits. Loads come before stores, so that they wait together.
  template <bool kWhole>
  __device__ void narrow_pairs(const Place& to, int i) const {
    constexpr int kGroups = kColumns / 8, kTogether = (kGroups + 1) / 2;
#pragma unroll
    for (int first = 0; first < kGroups; first += kTogether) {
      const int end = min(first + kTogether, kGroups);
      float2 sums[kTogether] = {};
      if (to.load) {
        each_group<kWhole>(to, first, end,
                           [&](int g) { sums[g - first] = *reinterpret_cast<const float2*>(to.sum + 8 * g); });
      }
      each_group<kWhole>(to, first, end, [&](int g) {
        const float2 mine = pair(to, g, i);
        *reinterpret_cast<std::uint32_t*>(to.final + 8 * g) =
            ptx::pack<T>(sums[g - first].x + mine.x, sums[g - first].y + mine.y);
      });
    }
  }

  /// Any strides, and zeros for a tile without steps.
  __device__ void store_elements(const Place& to, int i, bool empty) const {
    each_group<false>(to, 0, kColumns / 8, [&](int g) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const float mine = empty ? 0 : acc_[4 * g + 2 * i + e] * to.scale;
        const float sum = mine + (to.load ? to.sum[8 * g + e] : 0);
        if (to.narrow) {
          to.final[8 * g + e] = static_cast<T>(sum);
        } else {
          to.sum[8 * g + e] = sum;
        }
      }
    });
  }

  const float (&acc_)[kColumns / 2];
  std::uint32_t memory_;
  int warpgroup_, thread_;
};

}  // namespace rotunda::sm90::wide
