// The gradients of a chunk from its P and dS: dq = scale·dS·K, dk += scale·dSᵀ·Q, dv += Pᵀ·dout.
//
// One kernel makes all three, so that a chunk's few dq tiles run beside its many dk and dv tiles. A tile is 128 rows,
// and a team of two thread blocks, a cluster, has it: each up to kColumns of the columns
// (GradientParams::second_column), with 64 rows for each consumer warpgroup. A step adds 64 of the summed axis. A (dS,
// or Pᵀ and dSᵀ read along their columns) comes from the pools as it was written, half of it fetched by each block for
// both; B (K, Q or dout) by the copy engine, with zeros beyond the head dim.
#include "kernel/sm90/ptx/wgmma.cuh"
#include "kernel/sm90/wide/backward_gradient_producer.cuh"
#include "kernel/sm90/wide/backward_gradient_store.cuh"
#include "kernel/sm90/wide/backward_launch.hpp"
#include "kernel/sm90/wide/backward_ring.cuh"

namespace rotunda::sm90::wide {
namespace {

/// A thread, of 168 at launch.
constexpr int kProducerRegisters = 72, kConsumerRegisters = 216;

/// One consumer warpgroup.
template <class T, int kColumns>
class Consumer {
  using Layout = typename GradientShape<kColumns>::Layout;

 public:
  __device__ Consumer(const GradientParams& p, Ring<Layout, kTeam> ring, std::uint32_t base, int warpgroup)
      : p_(p), ring_(ring), base_(base), warpgroup_(warpgroup), thread_(static_cast<int>(threadIdx.x) % kWarpgroup) {}

  __device__ void run() {
    const int team = static_cast<int>(blockIdx.x) / kTeam;
    const int end = ptx::uniform(p_.lists.item_first[team + 1]);
    const GradientStore<T, kColumns> store(acc_, base_ + Layout::kOwn, warpgroup_, thread_);
    GradientWork next(p_.lists, ptx::uniform(p_.lists.item_first[team]), end);
    while (next.exists()) {
      const GradientWork work = next;
      next = GradientWork(p_.lists, work.index + 1, end);
      const HeadRange heads = heads_of(p_.heads, work.item);
      const int steps = ptx::uniform(work.cell.steps * (heads.end - heads.begin));
      if (ptx::uniform(static_cast<int>(work.item.gradient)) == static_cast<int>(Gradient::dq)) {
        const bool any = sum<ptx::Major::k>(steps);
        if (heads.end > heads.begin) store.tile(p_, work, p_.heads.q_head(work.item.head), !any);
      } else {
        const bool any = sum<ptx::Major::mn>(steps);
        store.tile(p_, work, p_.heads.kv_first + work.item.head, !any);
      }
    }
    store.finish();
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
      const bool mine = (ring_.halves() >> warpgroup_ & 1) != 0;
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
        ring_.release_previous();
      }
      if (!mine) ring_.release();
      pending = mine;
    }
    ptx::wgmma_wait<0>();
    if (pending) ring_.release_previous();
    ptx::pin(acc_);
    return started;
  }

  const GradientParams& p_;
  Ring<Layout, kTeam> ring_;
  std::uint32_t base_;
  int warpgroup_, thread_;
  float acc_[kColumns / 2];
};

template <class T, int kColumns>
__global__ void __launch_bounds__(kThreads, 1) gradients_kernel(const __grid_constant__ GradientParams p) {
  extern __shared__ __align__(1024) std::uint8_t memory[];
  const std::uint32_t base = ptx::shared_address(memory);
  const Ring<typename GradientShape<kColumns>::Layout, kTeam> ring(base);
  ring.init();
  const int warpgroup = ptx::uniform(static_cast<int>(threadIdx.x) / kWarpgroup);
  if (warpgroup == 0) {
    ptx::setmaxnreg_dec<kProducerRegisters>();
    GradientProducer<kColumns>(p, ring).run();
  } else {
    ptx::setmaxnreg_inc<kConsumerRegisters>();
    Consumer<T, kColumns>(p, ring, base, warpgroup - 1).run();
  }
  ring.leave();
}

template <class T, int kColumns>
void launch(const GradientParams& params, int workers, Stream stream) {
  launch_early<kTeam>(gradients_kernel<T, kColumns>, params, kTeam * teams_of(workers),
                      GradientShape<kColumns>::Layout::kBytes, stream);
}

template <class T>
void launch(const GradientParams& params, int columns, int workers, Stream stream) {
  switch (columns) {
    case 144: return launch<T, 144>(params, workers, stream);
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
