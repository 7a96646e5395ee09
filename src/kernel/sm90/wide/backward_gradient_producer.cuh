// What brings the steps of gradient tiles to shared memory.
#pragma once

#include "kernel/sm90/ptx/bulk.cuh"
#include "kernel/sm90/ptx/tma.cuh"
#include "kernel/sm90/wide/backward_params.hpp"
#include "kernel/sm90/wide/backward_ring.cuh"

namespace rotunda::sm90::wide {

template <int kColumns>
struct GradientShape {
  static constexpr int kBoxes = (kColumns + 63) / 64;  ///< of B, the last one perhaps wider than what is used
  /// Behind the stages: what a consumer warp stores at once, two boxes of it.
  static constexpr std::uint32_t kBoxOfStore = kStoreRows * 128, kStorePerWarp = 2 * kBoxOfStore;
  using Layout = RingLayout<kBoxes, kConsumerWarps * static_cast<int>(kStorePerWarp)>;
};

/// Query heads of the chunk whose sums an item adds up.
struct HeadRange {
  int begin, end;
};

__device__ inline HeadRange heads_of(const ChunkHeads& heads, const GradientItem& item) {
  if (item.gradient == Gradient::dq) return {item.head, heads.has(item.head) ? item.head + 1 : item.head};
  return {max(item.head * heads.group, -heads.q_first),
          min((item.head + 1) * heads.group, heads.heads_q - heads.q_first)};
}

/// An item of a thread block, fetched while the one before it is worked on.
struct GradientWork {
  int index, end;
  GradientItem item;
  GradientCell cell;

  __device__ GradientWork(const ChunkLists& lists, int at, int last) : index(at), end(last) {
    if (!exists()) return;
    item = lists.items[index];
    cell = lists.gradient_cells[item.cell];
  }
  [[nodiscard]] __device__ bool exists() const { return index < end; }
};

/// The warp that copies. One lane starts the copies; all clean.
template <int kColumns>
class GradientProducer {
  using Layout = typename GradientShape<kColumns>::Layout;

 public:
  __device__ GradientProducer(const GradientParams& p, Ring<Layout> ring, std::uint32_t base)
      : p_(p), ring_(ring), whole_(base + Layout::kWhole), lane_(static_cast<int>(threadIdx.x) % 32) {}

  __device__ void run() {
    const int worker = static_cast<int>(blockIdx.x);
    GradientWork next(p_.lists, p_.lists.item_first[worker], p_.lists.item_first[worker + 1]);
    while (next.exists()) {
      const GradientWork work = next;
      next = GradientWork(p_.lists, work.index + 1, work.end);
      const HeadRange heads = heads_of(p_.heads, work.item);
      for (int head = heads.begin; head < heads.end; ++head) {
        const Source from = source(work.item, work.cell, head);
        for (int n = 0; n < work.cell.run_count; ++n) copy_run(from, p_.lists.runs[work.cell.run_first + n]);
      }
    }
  }

 private:
  /// What the steps of an item and a head have in common.
  struct Source {
    const std::uint8_t* a;          ///< in a pool: dq: of step 0; dk, dv: of query row 0 of pool tile 0
    const std::int32_t* row_tiles;  ///< dk, dv: the pool tiles of the query tiles; dq: nullptr
    const CUtensorMap* b;
    int column, row, head, batch;
  };

  static constexpr int kKeyBlockBytes = kTileRows * kBlock * 2, kTileBytes = kKeyBlocks * kKeyBlockBytes;

  [[nodiscard]] __device__ Source source(const GradientItem& item, const GradientCell& cell, int head) const {
    const bool of_q = item.gradient == Gradient::dq;
    const auto* pool = static_cast<const std::uint8_t*>(item.gradient == Gradient::dv ? p_.p : p_.ds);
    constexpr int kCells = kTileKeys / kGradientRows;
    const std::int64_t tile = std::int64_t{head} * p_.lists.tiles_per_head + (of_q ? cell.tile : cell.tile / kCells);
    const int key_block = of_q ? 0 : cell.tile % kCells * (kGradientRows / kBlock);
    return {.a = pool + tile * kTileBytes + key_block * kKeyBlockBytes,
            .row_tiles = of_q ? nullptr : p_.lists.row_tiles + cell.row_tiles,
            .b = of_q                            ? &p_.k
                 : item.gradient == Gradient::dk ? &p_.q
                                                 : &p_.dout,
            .column = item.column * kColumns,
            .row = cell.inner_row,
            .head = of_q ? p_.heads.kv_head(head) : p_.heads.q_head(head),
            .batch = cell.batch};
  }

  __device__ void copy_run(const Source& from, const Run& run) {
    if (ptx::elect_lane()) {
      Ring<Layout> ring = ring_;
#pragma unroll 1
      for (int step = run.first; step < run.first + run.count; ++step, ring.advance()) {
        copy(from, step, ring, run);
      }
    }
    __syncwarp();
    if (run.clean >= 0) clean(p_.lists.row_masks[run.clean]);
    ring_.advance(run.count);
  }

  __device__ void copy(const Source& from, int step, const Ring<Layout>& ring, const Run& run) const {
    const std::uint32_t stage = ring.stage(), barrier = run.clean < 0 ? ring.full() : whole_;
    std::int64_t tile = 0;
    if (from.row_tiles != nullptr) tile = from.row_tiles[step / kRowBlocks];
    ring.wait_empty();
    ring.set_halves(run.halves);
    ptx::mbarrier_arrive_expect(barrier, Layout::kStage);
    if (from.row_tiles == nullptr) {
      ptx::bulk_load(stage, from.a + std::int64_t{step} * kKeyBlockBytes, kRowsBytes, barrier);
    } else {
      const std::uint8_t* a = from.a + tile * kTileBytes + step % kRowBlocks * static_cast<int>(kBoxBytes);
      ptx::bulk_load(stage, a, kBoxBytes, barrier);
      ptx::bulk_load(stage + kBoxBytes, a + kKeyBlockBytes, kBoxBytes, barrier);
    }
    const int row = from.row + kBlock * step;
    if (p_.by_chunks) {
      ptx::tma_load(stage + kRowsBytes, from.b, barrier, ptx::Box5{0, row, from.column / 64, from.head, from.batch});
      return;
    }
#pragma unroll
    for (int i = 0; i < GradientShape<kColumns>::kBoxes; ++i) {
      ptx::tma_load(stage + kRowsBytes + i * kBoxBytes, from.b, barrier,
                    ptx::Box4{from.column + 64 * i, row, from.head, from.batch});
    }
  }

  /// Zeroes the rows of B that no slice has, when all has come, and only then hands the stage on.
  __device__ void clean(std::uint64_t rows) {
    ptx::mbarrier_wait(whole_, whole_parity_);
    whole_parity_ ^= 1;
    const std::uint32_t at = ring_.stage() + kRowsBytes + lane_ / 8 * kBoxBytes + lane_ % 8 * 16;
    for (std::uint64_t left = ~rows; left != 0; left &= left - 1) {
      const int row = __ffsll(static_cast<long long>(left)) - 1;
      if (lane_ / 8 < GradientShape<kColumns>::kBoxes) ptx::store_zeros(at + row * 128);
    }
    ptx::fence_async_proxy();
    __syncwarp();
    if (lane_ == 0) ptx::mbarrier_arrive(ring_.full());
  }

  const GradientParams& p_;
  Ring<Layout> ring_;
  std::uint32_t whole_, whole_parity_ = 0;
  int lane_;
};

}  // namespace rotunda::sm90::wide
