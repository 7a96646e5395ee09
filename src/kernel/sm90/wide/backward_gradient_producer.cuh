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
  static constexpr int kStages = kColumns <= 160 ? 5 : 4;
  /// Behind the stages: boxes that a consumer warp stores at once.
  static constexpr int kStoreBoxes = kStages == 5 ? 1 : 2;
  static constexpr std::uint32_t kBoxOfStore = kStoreRows * 128, kStorePerWarp = kStoreBoxes * kBoxOfStore;
  using Layout = RingLayout<kStages, kBoxes, kConsumerWarps* static_cast<int>(kStorePerWarp)>;
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

/// Elements by which the columns of an item's sum are shifted: as its B is, the first of its heads' where they differ.
__device__ inline int shift_of(const ChunkHeads& heads, const GradientOutput& out, const GradientItem& item) {
  const int head = item.gradient == Gradient::dq ? heads.kv_head(item.head) : heads.q_head(heads_of(heads, item).begin);
  return out.shift.of(head);
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

/// The columns of a tile that this thread block has.
struct OwnColumns {
  int first, count;
};
template <int kColumns>
__device__ OwnColumns own_columns(const GradientParams& p) {
  if (ptx::cluster_rank() == 0) return {0, p.second_column};
  return {p.second_column, kColumns};
}

/// The warps that copy, each its part of every step: the first this block's half of A, for the whole team, the others
/// the boxes of B in turn. One lane of a warp starts the copies; all of the first clean.
template <int kColumns>
class GradientProducer {
  using Layout = typename GradientShape<kColumns>::Layout;

 public:
  __device__ GradientProducer(const GradientParams& p, Ring<Layout, kTeam> ring)
      : p_(p),
        ring_(ring),
        rank_(static_cast<int>(ptx::cluster_rank())),
        warp_(ptx::uniform(static_cast<int>(threadIdx.x) / 32)),
        lane_(static_cast<int>(threadIdx.x) % 32) {}

  __device__ void run() {
    if (p_.boxes == GradientBoxes::chunks && warp_ > 1) return;  // nothing to copy: nobody would wait for them
    const int team = static_cast<int>(blockIdx.x) / kTeam;
    GradientWork next(p_.lists, p_.lists.item_first[team], p_.lists.item_first[team + 1]);
    while (next.exists()) {
      const GradientWork work = next;
      next = GradientWork(p_.lists, work.index + 1, work.end);
      const HeadRange heads = heads_of(p_.heads, work.item);
      for (int head = heads.begin; head < heads.end; ++head) {
        const Source from = source(work.item, work.cell, head);
        const Run* const runs = p_.lists.runs + work.cell.run_first;
        Run next = work.cell.run_count > 0 ? runs[0] : Run{};
        for (int n = 0; n < work.cell.run_count; ++n) {
          const Run run = next;
          if (n + 1 < work.cell.run_count) next = runs[n + 1];
          copy_run(from, run);
        }
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
            .column = own_columns<kColumns>(p_).first - shift_of(p_.heads, p_.output(item.gradient), item),
            .row = cell.inner_row,
            .head = of_q ? p_.heads.kv_box(head) : p_.heads.q_box(head),
            .batch = cell.batch};
  }

  /// What a run says is held in registers: between copies the compiler would read it from memory again.
  __device__ void copy_run(const Source& from, const Run& run) {
    if (ptx::elect_lane()) warp_ == 0 ? copy_a(from, run) : copy_b(from, run);
    __syncwarp();
    if (run.clean >= 0 && warp_ == 0) clean(p_.lists.row_masks[run.clean]);
    ring_.advance(run.count);
  }

  /// Of B, each 64 columns.
  [[nodiscard]] __device__ int boxes() const { return (own_columns<kColumns>(p_).count + 63) / 64; }
  /// Where the copies of a stage are counted.
  [[nodiscard]] __device__ static std::uint32_t barrier(const Ring<Layout, kTeam>& ring, const Run& run) {
    return run.clean < 0 ? ring.full() : ring.whole();
  }

  __device__ void copy_a(const Source& from, const Run& run) const {
    static_assert(kRowsBytes == kTeam * kBoxBytes);
    constexpr std::uint16_t kEveryone = (1 << kTeam) - 1;
    const bool of_q = from.row_tiles == nullptr;
    const int end = run.first + run.count;
    const std::uint8_t* const a = from.a + rank_ * (of_q ? static_cast<int>(kBoxBytes) : kKeyBlockBytes);
    const auto row_tile = [&](int n) { return of_q || n * kRowBlocks >= end ? 0 : from.row_tiles[n]; };
    std::int64_t tile = row_tile(run.first / kRowBlocks);
    int ahead = row_tile(run.first / kRowBlocks + 1);
    Ring<Layout, kTeam> ring = ring_;
#pragma unroll 1
    for (int step = run.first; step < end; ++step, ring.advance()) {
      const std::int64_t at = of_q ? std::int64_t{step} * kKeyBlockBytes
                                   : tile * kTileBytes + step % kRowBlocks * static_cast<int>(kBoxBytes);
      ring.wait_empty();
      ring.set_halves(run.halves);
      ptx::mbarrier_arrive_expect(barrier(ring, run), kRowsBytes + boxes() * kBoxBytes);
      ptx::bulk_load_multicast(ring.stage() + rank_ * kBoxBytes, a + at, kBoxBytes, barrier(ring, run), kEveryone);
      if (step % kRowBlocks != kRowBlocks - 1) continue;
      tile = ahead;
      ahead = row_tile(step / kRowBlocks + 2);
    }
  }

  /// May be ahead of who says how many bytes to expect: a phase that waits for that arrival counts from below zero too.
  __device__ void copy_b(const Source& from, const Run& run) const {
    Ring<Layout, kTeam> ring = ring_;
#pragma unroll 1
    for (int step = run.first; step < run.first + run.count; ++step, ring.advance()) {
      const std::uint32_t to = ring.stage() + kRowsBytes;
      const int row = from.row + kBlock * step;
      ring.wait_empty();
      if (p_.boxes == GradientBoxes::chunks) {
        ptx::tma_load(to, from.b, barrier(ring, run), ptx::Box5{0, row, from.column / 64, from.head, from.batch});
        continue;
      }
#pragma unroll 1
      for (int i = warp_ - 1; i < boxes(); i += kProducerWarps - 1) {
        if (p_.boxes == GradientBoxes::halves) {
          ptx::tma_load(to + i * kBoxBytes, from.b, barrier(ring, run),
                        ptx::Box5{64 * i, row, rank_, from.head, from.batch});
        } else {
          ptx::tma_load(to + i * kBoxBytes, from.b, barrier(ring, run),
                        ptx::Box4{from.column + 64 * i, row, from.head, from.batch});
        }
      }
    }
  }

  /// Zeroes the rows of B that no slice has, when all has come, and only then hands the stage on.
  __device__ void clean(std::uint64_t rows) {
    ring_.wait_whole(whole_parities_);
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
  Ring<Layout, kTeam> ring_;
  int rank_, warp_, lane_;
  std::uint32_t whole_parities_ = 0;  ///< a bit a stage
};

}  // namespace rotunda::sm90::wide
