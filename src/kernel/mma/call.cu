#include "kernel/mma/call.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <numbers>

#include "base/cuda/check.hpp"
#include "kernel/mma/launch.cuh"

namespace rotunda::mma {
namespace {

/// How many elements lie side by side in what tiles are loaded from, and in what a thread writes at once.
constexpr int kLoaded = 8, kStored = 2;

Walk make_walk(std::span<const Slice> slices, const Slice* device_slices, const TensorView& rows,
               const Tiling& tiling) {
  ROTUNDA_CHECK(tiling.width > 0);
  ROTUNDA_CHECK(slices.empty() || device_slices != nullptr);
  return {.slices = device_slices,
          .slice_count = static_cast<int>(slices.size()),
          .rows = static_cast<int>(rows.rows()),
          .tiles = static_cast<int>((rows.rows() + tiling.rows - 1) / tiling.rows),
          .tile_rows = tiling.rows,
          .heads = static_cast<int>(rows.heads()),
          .one_buffer = tiling.one_buffer};
}

/// One for each tile of each head.
std::int64_t blocks_of(const Walk& walk, const TensorView& rows) {
  const std::int64_t blocks = std::int64_t{walk.tiles} * walk.heads * rows.batch();
  ROTUNDA_CHECK(blocks <= std::numeric_limits<int>::max());
  return blocks;
}

BackwardCall make_call(const BackwardArgs& args) {
  BackwardCall call;
  call.q = View(args.q, kLoaded);
  call.k = View(args.k, kLoaded);
  call.v = View(args.v, kLoaded);
  call.dout = View(args.dout, kLoaded);
  call.lse = View(args.lse, 1);
  call.delta = View(args.delta, 1);
  call.dq = View(args.dq, kStored);
  call.dk = View(args.dk, kStored);
  call.dv = View(args.dv, kStored);
  call.d = static_cast<int>(args.q.dim());
  call.d_v = static_cast<int>(args.v.dim());
  call.heads_q = static_cast<int>(args.q.heads());
  call.map = args.heads;
  call.scale = static_cast<float>(args.scale);
  call.scale_log2 = static_cast<float>(args.scale * std::numbers::log2e);
  return call;
}

}  // namespace

void forward(const ForwardArgs& args, int shared_bytes, Stream stream) {
  if (args.slices.empty() && !args.init && !args.last) return;
  ForwardCall call;
  call.d = static_cast<int>(args.q.dim());
  call.d_v = static_cast<int>(args.v.dim());
  const Tiling tiling = choose_tiling(Pass::forward, call.d, call.d_v, shared_bytes);
  call.walk = make_walk(args.slices, args.device_slices, args.q, tiling);
  call.q = View(args.q, kLoaded);
  call.k = View(args.k, kLoaded);
  call.v = View(args.v, kLoaded);
  call.acc = View(args.acc, kStored);
  call.lse = View(args.lse, 1);
  call.lse_low = View(args.lse_low, 1);
  call.out = View(args.out, kStored);
  call.map = args.heads;
  call.scale = args.scale;
  call.scale_log2 = static_cast<float>(args.scale * std::numbers::log2e);
  call.max_logit = args.max_logit;
  call.init = args.init;
  call.last = args.last;
  const std::int64_t blocks = blocks_of(call.walk, args.q);
  if (blocks == 0) return;
  const auto launch = args.q.dtype == DType::bf16 ? forward_bf16 : forward_fp16;
  launch(call, tiling, blocks, cuda::native(stream));
}

void backward(const BackwardArgs& args, int shared_bytes, Stream stream) {
  BackwardCall call = make_call(args);
  const bool bf16 = args.q.dtype == DType::bf16;
  const auto pass = [&](Pass which, const TensorView& rows, bool init, auto* launch) {
    if (args.slices.empty() && !init) return;
    const Tiling tiling = choose_tiling(which, call.d, call.d_v, shared_bytes);
    call.walk = make_walk(args.slices, args.device_slices, rows, tiling);
    call.init = init;
    const std::int64_t blocks = blocks_of(call.walk, rows);
    if (blocks > 0) launch(call, tiling, blocks, cuda::native(stream));
  };
  pass(Pass::queries, args.q, args.init_dq, bf16 ? queries_bf16 : queries_fp16);
  pass(Pass::keys, args.k, args.init_dkv, bf16 ? keys_bf16 : keys_fp16);
}

std::optional<std::string> refuse_memory(const Problem& problem, int shared_bytes) {
  for (const Pass pass : {Pass::forward, Pass::queries, Pass::keys}) {
    if (pass != Pass::forward && !problem.grad) continue;
    if (choose_tiling(pass, problem.d, problem.d_v, shared_bytes).width > 0) continue;
    return fmt::format("mma has no tiles for d={} d_v={} in {} bytes of shared memory a block", problem.d, problem.d_v,
                       shared_bytes);
  }
  return std::nullopt;
}

}  // namespace rotunda::mma
