// The gradients of a chunk from its P and dS: dq = scale·dS·K, dk += scale·dSᵀ·Q, dv += Pᵀ·dout.
//
// One kernel makes all three, so that a chunk's few dq tiles run beside its many dk and dv tiles. A tile is 128 rows by
// kColumns columns, 64 rows for each consumer warpgroup; a step adds 64 of the summed axis. A (dS, or Pᵀ and dSᵀ read
// along their columns) comes from the pools as it was written, B (K, Q or dout) by the copy engine, with zeros beyond
// the head dim.
#include "kernel/sm90/ptx/bulk.cuh"
#include "kernel/sm90/ptx/global.cuh"
#include "kernel/sm90/ptx/tma.cuh"
#include "kernel/sm90/ptx/wgmma.cuh"
#include "kernel/sm90/wide/backward_launch.hpp"
#include "kernel/sm90/wide/backward_ring.cuh"

namespace rotunda::sm90::wide {
namespace {

template <int kColumns>
struct Shape {
  static constexpr int kBoxes = (kColumns + 63) / 64;  ///< of B, the last one perhaps wider than what is used
  using Layout = RingLayout<kBoxes, 0>;
};

/// Query heads of the chunk whose sums an item adds up.
struct HeadRange {
  int begin, end;
};

__device__ HeadRange heads_of(const ChunkHeads& heads, const GradientItem& item) {
  if (item.gradient == Gradient::dq) return {item.head, heads.has(item.head) ? item.head + 1 : item.head};
  return {max(item.head * heads.group, -heads.q_first),
          min((item.head + 1) * heads.group, heads.heads_q - heads.q_first)};
}

/// The warp that copies. One lane starts the copies; all clean.
template <int kColumns>
class Producer {
  using Layout = typename Shape<kColumns>::Layout;

 public:
  __device__ Producer(const GradientParams& p, Ring<Layout> ring, std::uint32_t base)
      : p_(p), ring_(ring), whole_(base + Layout::kWhole), lane_(static_cast<int>(threadIdx.x) % 32) {}

  __device__ void run() {
    const int worker = static_cast<int>(blockIdx.x);
    for (int i = p_.lists.item_first[worker]; i < p_.lists.item_first[worker + 1]; ++i) {
      const GradientItem item = p_.lists.items[i];
      const GradientCell& cell = p_.lists.gradient_cells[item.cell];
      const HeadRange heads = heads_of(p_.heads, item);
      for (int head = heads.begin; head < heads.end; ++head) {
        const Source from = source(item, cell, head);
        for (int n = 0; n < cell.run_count; ++n) copy_run(from, p_.lists.runs[cell.run_first + n]);
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
    for (int i = 0; i < Shape<kColumns>::kBoxes; ++i) {
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
      if (lane_ / 8 < Shape<kColumns>::kBoxes) ptx::store_zeros(at + row * 128);
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

/// One consumer warpgroup.
template <class T, int kColumns>
class Consumer {
  using Layout = typename Shape<kColumns>::Layout;

 public:
  __device__ Consumer(const GradientParams& p, Ring<Layout> ring, std::uint32_t base, int warpgroup)
      : p_(p), ring_(ring), base_(base), warpgroup_(warpgroup), thread_(static_cast<int>(threadIdx.x) % kWarpgroup) {}

  __device__ void run() {
    const int worker = static_cast<int>(blockIdx.x);
    const int end = ptx::uniform(p_.lists.item_first[worker + 1]);
    for (int i = ptx::uniform(p_.lists.item_first[worker]); i < end; ++i) {
      const GradientItem item = p_.lists.items[i];
      const GradientCell cell = p_.lists.gradient_cells[item.cell];
      const HeadRange heads = heads_of(p_.heads, item);
      const int steps = ptx::uniform(cell.steps * (heads.end - heads.begin));
      if (ptx::uniform(static_cast<int>(item.gradient)) == static_cast<int>(Gradient::dq)) {
        const bool any = sum<ptx::Major::k>(steps);
        if (heads.end > heads.begin) store(p_.dq, item, cell, p_.heads.q_head(item.head), !any);
      } else {
        const bool any = sum<ptx::Major::mn>(steps);
        store(item.gradient == Gradient::dk ? p_.dk : p_.dv, item, cell, p_.heads.kv_first + item.head, !any);
      }
    }
  }

 private:
  /// Adds up the next stages. Returns whether this half of the tile had any.
  template <ptx::Major kMajorA>
  __device__ bool sum(int steps) {
    constexpr bool kTransposed = kMajorA == ptx::Major::mn;
    const std::uint64_t a = ptx::descriptor(base_ + kBoxBytes * warpgroup_, kTransposed ? kBoxBytes : 16, 1024);
    const std::uint64_t b = ptx::descriptor(base_ + kRowsBytes, kBoxBytes, 1024);
    bool started = false, pending = false;  // pending: the stage before this one is still read
#pragma unroll 1
    for (int s = 0; s < steps; ++s, ring_.advance()) {
      ring_.wait_full();
      const bool mine = (ptx::uniform(ring_.halves()) >> warpgroup_ & 1) != 0;
      if (mine) {
        ptx::wgmma_fence();
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          ptx::wgmma<T, kColumns, kMajorA, ptx::Major::mn>(
              acc_, a + ring_.descriptor_offset() + (kTransposed ? 128 : 2) * k,
              b + ring_.descriptor_offset() + 128 * k, started || k > 0 ? 1 : 0);
        }
        ptx::wgmma_commit();
        started = true;
      }
      if (pending) {
        mine ? ptx::wgmma_wait<1>() : ptx::wgmma_wait<0>();
        ring_.release_previous(thread_);
      }
      if (!mine) ring_.release(thread_);
      pending = mine;
    }
    ptx::wgmma_wait<0>();
    if (pending) ring_.release_previous(thread_);
    ptx::pin(acc_);
    return started;
  }

  /// Where a row of this thread goes: sums of 16-bit gradients stay in scratch until no later chunk adds to them.
  struct Place {
    float* sum;
    T* final;
    float scale;
    bool empty, load, narrow, reduce;
  };

  __device__ void store(const GradientOutput& out, const GradientItem& item, const GradientCell& cell, int head,
                        bool empty) const {
    const int first = item.column * kColumns + thread_ % 4 * 2;
    const bool fast = out.dim >= (item.column + 1) * kColumns && out.aligned && !empty;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = 64 * warpgroup_ + thread_ / 32 * 16 + thread_ % 32 / 4 + 8 * i;
      if (row >= cell.rows) continue;
      Place to{.sum = out.to.at<float>(cell.batch, cell.row + row, head) + first,
               .final = out.to.at<T>(cell.batch, cell.row + row, head) + first,
               .scale = out.scale,
               .empty = empty,
               .load = cell.load != 0,
               .narrow = out.narrow && cell.last != 0,
               .reduce = out.reduce};
      if (out.narrow) to.sum = out.scratch + (std::int64_t{cell.scratch} * kGradientRows + row) * out.dim + first;
      fast ? store_pairs(to, i) : store_elements(to, i, out.dim - first);
    }
  }

  [[nodiscard]] __device__ float2 pair(const Place& to, int g, int i) const {
    return {acc_[4 * g + 2 * i] * to.scale, acc_[4 * g + 2 * i + 1] * to.scale};
  }

  /// Whole rows of a tile that has steps, by pairs of columns.
  __device__ void store_pairs(const Place& to, int i) const {
    constexpr int kGroups = kColumns / 8;
    if (to.narrow || (to.load && !to.reduce)) return add_pairs(to, i);
    if (to.load) {
#pragma unroll
      for (int g = 0; g < kGroups; ++g) ptx::add_global(to.sum + 8 * g, pair(to, g, i));
    } else {
#pragma unroll
      for (int g = 0; g < kGroups; ++g) *reinterpret_cast<float2*>(to.sum + 8 * g) = pair(to, g, i);
    }
  }

  /// What ends in 16 bits. Loads come before stores, so that they wait together.
  __device__ void add_pairs(const Place& to, int i) const {
    constexpr int kGroups = kColumns / 8, kTogether = kGroups / 2;
#pragma unroll
    for (int first = 0; first < kGroups; first += kTogether) {
      float2 sums[kTogether];
#pragma unroll
      for (int n = 0; n < kTogether; ++n) {
        sums[n] = to.load ? *reinterpret_cast<const float2*>(to.sum + 8 * (first + n)) : float2{0, 0};
      }
#pragma unroll
      for (int n = 0; n < kTogether; ++n) {
        const float2 mine = pair(to, first + n, i);
        const float x = sums[n].x + mine.x, y = sums[n].y + mine.y;
        if (to.narrow) {
          *reinterpret_cast<std::uint32_t*>(to.final + 8 * (first + n)) = ptx::pack<T>(x, y);
        } else {
          *reinterpret_cast<float2*>(to.sum + 8 * (first + n)) = {x, y};
        }
      }
    }
  }

  /// Any strides, no more than `width` columns, and zeros for a tile without steps.
  __device__ void store_elements(const Place& to, int i, int width) const {
#pragma unroll
    for (int g = 0; g < kColumns / 8; ++g) {
      if (8 * g >= width) continue;
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const float mine = to.empty ? 0 : acc_[4 * g + 2 * i + e] * to.scale;
        const float sum = mine + (to.load ? to.sum[8 * g + e] : 0);
        if (to.narrow) {
          to.final[8 * g + e] = static_cast<T>(sum);
        } else {
          to.sum[8 * g + e] = sum;
        }
      }
    }
  }

  const GradientParams& p_;
  Ring<Layout> ring_;
  std::uint32_t base_;
  int warpgroup_, thread_;
  float acc_[kColumns / 2];
};

template <class T, int kColumns>
__global__ void __launch_bounds__(kThreads, 1) gradients_kernel(const __grid_constant__ GradientParams p) {
  extern __shared__ __align__(1024) std::uint8_t memory[];
  const std::uint32_t base = ptx::shared_address(memory);
  const Ring<typename Shape<kColumns>::Layout> ring(base);
  ring.init();
  const int warpgroup = ptx::uniform(static_cast<int>(threadIdx.x) / kWarpgroup);
  if (warpgroup == 0) {
    ptx::setmaxnreg_dec<kProducerRegisters>();
    if (threadIdx.x < 32) Producer<kColumns>(p, ring, base).run();
  } else {
    ptx::setmaxnreg_inc<kConsumerRegisters>();
    Consumer<T, kColumns>(p, ring, base, warpgroup - 1).run();
  }
}

template <class T, int kColumns>
void launch(const GradientParams& params, int workers, Stream stream) {
  launch_early(gradients_kernel<T, kColumns>, params, workers, Shape<kColumns>::Layout::kBytes, stream);
}

template <class T>
void launch(const GradientParams& params, int columns, int workers, Stream stream) {
  switch (columns) {
    case 136: return launch<T, 136>(params, workers, stream);
    case 160: return launch<T, 160>(params, workers, stream);
    case 192: return launch<T, 192>(params, workers, stream);
    case 224: return launch<T, 224>(params, workers, stream);
    default: break;
  }
  ROTUNDA_CHECK(columns == 256);
  launch<T, 256>(params, workers, stream);
}

}  // namespace

void launch_gradients(const GradientParams& params, DType dtype, int columns, int workers, Stream stream) {
  if (dtype == DType::bf16) return launch<__nv_bfloat16>(params, columns, workers, stream);
  launch<__half>(params, columns, workers, stream);
}

}  // namespace rotunda::sm90::wide
