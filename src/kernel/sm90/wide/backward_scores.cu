// P and dS of a chunk, once: S = Q·Kᵀ, P = exp(scale·S - lse), dP = dout·Vᵀ, dS = P∘(dP - delta), rounded to 16 bits.
//
// A tile is 128 query rows by 256 keys; each of the two consumer warpgroups has 64 rows of it in its accumulators, and
// keeps its P packed while dP is made. The second warpgroup begins every product three stages behind the first, so that
// the exponentials and stores of one run under the products of the other.
#include "kernel/sm90/ptx/named_barrier.cuh"
#include "kernel/sm90/ptx/tma.cuh"
#include "kernel/sm90/ptx/wgmma.cuh"
#include "kernel/sm90/wide/backward_launch.hpp"
#include "kernel/sm90/wide/backward_pieces.cuh"
#include "kernel/sm90/wide/backward_ring.cuh"
#include "kernel/sm90/wide/backward_score_tiles.cuh"

namespace rotunda::sm90::wide {
namespace {

/// A thread, of 168 at launch.
constexpr int kProducerRegisters = 40, kConsumerRegisters = 232;

constexpr int kBoxesOfKeys = kTileKeys / 64;
using Layout = RingLayout<4, kBoxesOfKeys, kConsumerWarps * kPieces* static_cast<int>(kPieceBytes)>;
constexpr int kWgmmaStep = 16;      ///< of the summed axis
constexpr int kStaggerBarrier = 1;  ///< named barrier

__device__ void produce(const ScoreParams& p, Ring<Layout, 1> ring) {
  for (ScoreTiles tiles(p); tiles.next();) {
    const ScoreCell& cell = tiles.cell;
    const int head = p.heads.q_box(tiles.head), kv = p.heads.kv_box(tiles.head);
    const int k_shift = p.k_shift.of(p.heads.kv_head(tiles.head)), v_shift = p.v_shift.of(p.heads.kv_head(tiles.head));
    const int slabs = (p.d + 63) / 64, all = slabs + (p.d_v + 63) / 64;
#pragma unroll 1
    for (int t = 0; t < all; ++t, ring.advance()) {
      const CUtensorMap *rows = t < slabs ? &p.q : &p.dout, *keys = t < slabs ? &p.k : &p.v;
      const int column = t < slabs ? 64 * t - k_shift : 64 * (t - slabs) - v_shift;
      ring.wait_empty();
      ptx::mbarrier_arrive_expect(ring.full(), Layout::kStage);
      ptx::tma_load(ring.stage(), rows, ring.full(), ptx::Box4{column, cell.q_row, head, cell.batch});
      ptx::tma_load(ring.stage() + kRowsBytes, keys, ring.full(), ptx::Box4{column, cell.k_row, kv, cell.batch});
    }
  }
}

/// One consumer warpgroup.
template <class T>
class Consumer {
 public:
  __device__ Consumer(const ScoreParams& p, Ring<Layout, 1> ring, std::uint32_t base, int warpgroup)
      : p_(p),
        ring_(ring),
        writer_(base + Layout::kOwn, warpgroup * 4 + static_cast<int>(threadIdx.x) % kWarpgroup / 32),
        base_(base),
        warpgroup_(warpgroup),
        thread_(static_cast<int>(threadIdx.x) % kWarpgroup) {}

  __device__ void run() {
    const int first_row = 64 * warpgroup_ + kWarpRows * (thread_ / 32);  // of the warp
    for (ScoreTiles tiles(p_); tiles.next();) {
      const ScoreCell& cell = tiles.cell;
      const ScoreRows rows = load_rows(p_, tiles, first_row + thread_ % 32 / 4);
      const bool partial = ptx::uniform(cell.band_count) > 0;
      const std::int64_t tile = std::int64_t{tiles.head} * p_.lists.tiles_per_head + cell.tile;
      const std::int64_t at = tile * kPoolTileElements + first_row * kBlock;
      T *p = static_cast<T*>(p_.p) + at, *ds = static_cast<T*>(p_.ds) + at;
      const int parts = ptx::uniform(cell.parts) >> 2 * warpgroup_ & 3;
      if (parts == 3) {
        multiply<kTileKeys>(p_.d, 0);
        partial ? make_p<true, kKeyBlocks>(rows, p, 0) : make_p<false, kKeyBlocks>(rows, p, 0);
        multiply<kTileKeys>(p_.d_v, 0);
        partial ? make_ds<true, kKeyBlocks>(rows, ds, 0) : make_ds<false, kKeyBlocks>(rows, ds, 0);
      } else if (parts != 0) {
        const int first = parts == 2 ? kKeyBlocks / 2 : 0;
        multiply<kTileKeys / 2>(p_.d, first);
        make_p<true, kKeyBlocks / 2>(rows, p, first);
        multiply<kTileKeys / 2>(p_.d_v, first);
        make_ds<true, kKeyBlocks / 2>(rows, ds, first);
      } else {
        skip(p_.d);
        skip(p_.d_v);
      }
    }
    writer_.finish();
  }

 private:
  /// The first kKeys / 2 of acc_ = A·Bᵀ over the next stages, which hold `dim` of the summed axis, shifted or not, for
  /// the keys from key block `first` on.
  template <int kKeys>
  __device__ void multiply(int dim, int first) {
    const int steps = (dim + kWgmmaStep - 1) / kWgmmaStep;
    const int whole = kWgmmaStep * steps / kBlock, rest = kWgmmaStep * steps % kBlock;
    lag_behind();
#pragma unroll 1
    for (int t = 0; t < whole; ++t) {
      const Operands slab = begin_slab(first);
#pragma unroll
      for (int k = 0; k < kBlock / kWgmmaStep; ++k) add<kKeys>(slab, k, t + k > 0);
      end_slab(t);
    }
    if (rest > 0) {
      const Operands slab = begin_slab(first);
#pragma unroll 1
      for (int k = 0; kWgmmaStep * k < rest; ++k) {
        ptx::wgmma_fence();
        add<kKeys>(slab, k, true);
      }
      end_slab(whole);
    }
    ptx::wgmma_wait<0>();
    ring_.release_previous();
    ptx::pin(acc_);
  }

  /// Lets the stages of a product pass.
  __device__ void skip(int dim) {
    lag_behind();
    for (int t = 0; t * kBlock < dim; ++t) {
      ring_.wait_full();
      ptx::named_barrier_arrive_if(warpgroup_ == 0 && t == p_.lag - 1, kStaggerBarrier, kConsumers * kWarpgroup);
      ring_.release();
      ring_.advance();
    }
  }

  __device__ void lag_behind() const {
    if (warpgroup_ == 1 && p_.lag > 0) ptx::named_barrier_sync(kStaggerBarrier, kConsumers * kWarpgroup);
  }

  struct Operands {
    std::uint64_t a, b;  ///< descriptors
  };

  __device__ Operands begin_slab(int first) const {
    std::uint32_t a = base_ + 64 * 128 * warpgroup_, b = base_ + kRowsBytes + 64 * 128 * first;
    ptx::forget(a);
    ptx::forget(b);
    ring_.wait_full();
    ptx::wgmma_fence();
    const std::uint64_t offset = ring_.descriptor_offset();
    return {ptx::descriptor(a, 16, 1024) + offset, ptx::descriptor(b, 16, 1024) + offset};
  }
  template <int kKeys>
  __device__ void add(const Operands& slab, int k, bool add_to_sum) {
    ptx::wgmma<T, kKeys, ptx::Major::k, ptx::Major::k>(reinterpret_cast<float(&)[kKeys / 2]>(acc_), slab.a + 2 * k,
                                                       slab.b + 2 * k, add_to_sum ? 1 : 0);
  }
  __device__ void end_slab(int t) {
    ptx::wgmma_commit();
    ptx::named_barrier_arrive_if(warpgroup_ == 0 && t == p_.lag - 1, kStaggerBarrier, kConsumers * kWarpgroup);
    if (t > 0) {
      ptx::wgmma_wait<1>();
      ring_.release_previous();
    }
    ring_.advance();
  }

  /// P of kBlocks key blocks, of the tile's from `first` on.
  template <bool kPartial, int kBlocks>
  __device__ void make_p(const ScoreRows& rows, T* to, int first) {
    const float scale = p_.scale * kLog2e;
    float lse2[2];  // in base 2; +inf for a row that sees nothing, so that its P is 0
#pragma unroll
    for (int i = 0; i < 2; ++i) lse2[i] = rows.lse[i] == -INFINITY ? INFINITY : rows.lse[i] * kLog2e;
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
#pragma unroll
      for (int b = 0; b < 8; ++b) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int column = 8 * block + b;
          float p[2];
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            p[e] = ptx::exp2_approximate(fmaf(acc_[4 * column + 2 * i + e], scale, -lse2[i]));
            if (kPartial && (rows.seen[i][e] >> 8 * first >> column & 1) == 0) p[e] = 0;
          }
          pairs_[2 * column + i] = ptx::pack<T>(p[0], p[1]);
        }
      }
      if (block % kPieces == kPieces - 1) {
        const int begin = block + 1 - kPieces;
        writer_.write(&pairs_[16 * begin], to + (first + begin) * kTileRows * kBlock);
      }
    }
  }

  /// Where P is 0 in a partial tile, dS is 0 whatever dP is: rows that no slice has may hold NaN.
  template <bool kPartial, int kBlocks>
  __device__ void make_ds(const ScoreRows& rows, T* to, int first) {
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
#pragma unroll
      for (int b = 0; b < 8; ++b) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int column = 8 * block + b;
          const float2 p = unpack<T>(pairs_[2 * column + i]);
          const float* dp = &acc_[4 * column + 2 * i];
          float x = p.x * (dp[0] - rows.delta[i]), y = p.y * (dp[1] - rows.delta[i]);
          if (kPartial && p.x == 0) x = 0;
          if (kPartial && p.y == 0) y = 0;
          pairs_[2 * column + i] = ptx::pack<T>(x, y);
        }
      }
      if (block % kPieces == kPieces - 1) {
        const int begin = block + 1 - kPieces;
        writer_.write(&pairs_[16 * begin], to + (first + begin) * kTileRows * kBlock);
      }
    }
  }

  const ScoreParams& p_;
  Ring<Layout, 1> ring_;
  PieceWriter writer_;
  std::uint32_t base_;
  int warpgroup_, thread_;
  float acc_[kTileKeys / 2];
  std::uint32_t pairs_[kTileKeys / 4];
};

template <class T>
__global__ void __launch_bounds__(kThreads, 1) scores_kernel(const __grid_constant__ ScoreParams p) {
  extern __shared__ __align__(1024) std::uint8_t memory[];
  const std::uint32_t base = ptx::shared_address(memory);
  const Ring<Layout, 1> ring(base);
  ring.init();
  const int warpgroup = ptx::uniform(static_cast<int>(threadIdx.x) / kWarpgroup);
  if (warpgroup == 0) {
    ptx::setmaxnreg_dec<kProducerRegisters>();
    if (threadIdx.x < 32 && ptx::elect_lane()) produce(p, ring);
  } else {
    ptx::setmaxnreg_inc<kConsumerRegisters>();
    Consumer<T>(p, ring, base, warpgroup - 1).run();
  }
}

}  // namespace

void launch_scores(const ScoreParams& params, DType dtype, int workers, Stream stream) {
  const auto kernel = dtype == DType::bf16 ? scores_kernel<__nv_bfloat16> : scores_kernel<__half>;
  launch_early<1>(kernel, params, workers, Layout::kBytes, stream);
}

}  // namespace rotunda::sm90::wide
