#include "kernel/cpu/cpu_kernel.hpp"

#include <algorithm>

#include "base/fail.hpp"
#include "kernel/cpu/tile_work.hpp"

namespace rotunda {
namespace {

using namespace cpu;

constexpr int kMaxHeadDim = 512;

/// Query heads that share a tile's K and V: at most 4, and each keeps at least a widest panel of rows.
int heads_per_tile(const HeadMap& map, const TileSizes& sizes) {
  const int most = std::min(4, sizes.lanes / kMaxPanel);
  int heads = 1;
  while (heads < most && heads < map.group) heads *= 2;
  return heads;
}

template <class Choice, class Args>
TileSizes sizes_of(Choice&& choice, const Args& args) {
  return choice(static_cast<int>(args.q.dim()), static_cast<int>(args.v.dim()), args.q.dtype, args.scale);
}

std::byte* worker_scratch(const KernelContext& context, std::int64_t bytes, int worker) {
  return context.workspace.data() + bytes * worker;
}

void check_workspace(const KernelContext& context, std::int64_t bytes) {
  ROTUNDA_CHECK(static_cast<std::int64_t>(context.workspace.size()) >= bytes * context.threads.threads());
}

/// Rows of query tiles that no key meets: no chunk writes them.
void zero_unseen(const BackwardArgs& args, const KeyChunks& work, const TileSizes& sizes, ThreadPool& threads) {
  threads.parallel(static_cast<std::int64_t>(work.visits_of_tile.size()), [&](std::int64_t n, int) {
    if (work.visits_of_tile[static_cast<std::size_t>(n)] != 0) return;
    const std::int64_t begin = n % work.tiles * sizes.lanes;
    const std::int64_t end = std::min(begin + sizes.lanes, args.q.rows());
    for (std::int64_t row = begin; row < end; ++row) {
      for (std::int64_t head = 0; head < args.q.heads(); ++head) {
        std::fill_n(args.dq.at<float>(n / work.tiles, row, head), args.q.dim(), 0.0F);
      }
    }
  });
}

class CpuKernel final : public Kernel {
 public:
  [[nodiscard]] std::string name() const override { return "cpu"; }
  [[nodiscard]] KernelCapabilities capabilities() const override { return {}; }
  [[nodiscard]] std::string description() const override { return instruction_set(); }

  [[nodiscard]] std::optional<std::string> refuse(const Problem& problem, const Device&) const override {
    if (problem.d > kMaxHeadDim || problem.d_v > kMaxHeadDim) {
      return fmt::format("cpu serves head dims 1 to {}, not d={} d_v={}", kMaxHeadDim, problem.d, problem.d_v);
    }
    return std::nullopt;
  }

  [[nodiscard]] std::int64_t workspace_bytes(const Problem& problem, const CallShape& call) const override {
    const auto sizes = [&](auto choice) { return choice(problem.d, problem.d_v, problem.dtype, problem.scale); };
    const std::int64_t bytes = call.backward ? scratch_bytes<BackwardScratch>(sizes(TileSizes::backward))
                                             : scratch_bytes<ForwardScratch>(sizes(TileSizes::forward));
    return bytes * call.threads;
  }

  void forward(const ForwardArgs& args, const KernelContext& context) const override {
    const TileSizes sizes = sizes_of(TileSizes::forward, args);
    const std::int64_t bytes = scratch_bytes<ForwardScratch>(sizes);
    check_workspace(context, bytes);
    const int heads = heads_per_tile(args.heads, sizes);
    const auto units = query_units(args.heads, static_cast<int>(args.q.heads()), heads);
    const auto tiles = query_tiles(args.slices, args.q, sizes.lanes / heads, args.init || args.last);
    const auto unit_count = static_cast<std::int64_t>(units.size());
    context.threads.parallel(static_cast<std::int64_t>(tiles.size()) * unit_count, [&](std::int64_t task, int worker) {
      Carver carver(worker_scratch(context, bytes, worker));
      const ForwardScratch scratch(sizes, carver);
      forward_tile(args, sizes, tiles[static_cast<std::size_t>(task / unit_count)],
                   units[static_cast<std::size_t>(task % unit_count)], scratch);
    });
  }

  void backward(const BackwardArgs& args, const KernelContext& context) const override {
    const TileSizes sizes = sizes_of(TileSizes::backward, args);
    const std::int64_t bytes = scratch_bytes<BackwardScratch>(sizes);
    check_workspace(context, bytes);
    const auto units = kv_units(args.heads, static_cast<int>(args.q.heads()), static_cast<int>(args.k.heads()));
    const KeyChunks work = key_chunks(args.slices, args.q, args.k, sizes);
    if (args.init_dq) zero_unseen(args, work, sizes, context.threads);
    std::vector<std::atomic<int>> turns(static_cast<std::size_t>(args.q.batch() * args.q.heads() * work.tiles));
    const BackwardShared shared{work, turns.data()};
    const auto unit_count = static_cast<std::int64_t>(units.size());
    const std::int64_t tasks = static_cast<std::int64_t>(work.chunks.size()) * unit_count;
    context.threads.parallel(tasks, [&](std::int64_t task, int worker) {
      Carver carver(worker_scratch(context, bytes, worker));
      const BackwardScratch scratch(sizes, carver);
      backward_chunk(args, sizes, work.chunks[static_cast<std::size_t>(task / unit_count)],
                     units[static_cast<std::size_t>(task % unit_count)], shared, scratch);
    });
  }
};

}  // namespace

const Kernel& cpu_kernel() {
  static const CpuKernel kernel;
  return kernel;
}

}  // namespace rotunda
