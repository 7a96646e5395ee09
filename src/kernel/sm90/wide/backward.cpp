#include "kernel/sm90/wide/backward.hpp"

#include <algorithm>

#include "base/cuda/check.hpp"
#include "kernel/sm90/tensor_map.hpp"
#include "kernel/sm90/wide/backward_launch.hpp"
#include "kernel/sm90/wide/backward_plan_cache.hpp"

namespace rotunda::sm90::wide {
namespace {

/// Thread blocks that run at once: one a multiprocessor, since each takes most of the shared memory.
int workers_of(const Device& device) {
  constexpr int kOfHopper = 132;
  if (!device.is_cuda()) return kOfHopper;
  int count = 0;
  ROTUNDA_CUDA(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device.index));
  return count;
}

bool is_narrow(const TensorView& view) {
  return view.dtype != DType::fp32;
}

BackwardShape shape_of(const BackwardArgs& args, const Device& device, std::int64_t pool_bytes) {
  return {.slices = {args.slices.begin(), args.slices.end()},
          .batch = args.q.batch(),
          .rows_q = args.q.rows(),
          .rows_k = args.k.rows(),
          .heads_kv = static_cast<int>(args.k.heads()),
          .group = args.heads.group,
          .d = static_cast<int>(args.q.dim()),
          .d_v = static_cast<int>(args.v.dim()),
          .workers = workers_of(device),
          .init_dq = args.init_dq,
          .init_dkv = args.init_dkv,
          .narrow_dkv = is_narrow(args.dk),
          .pool_bytes = pool_bytes};
}

/// Whether pairs of columns are aligned as a whole.
bool has_aligned_pairs(const TensorView& view) {
  bool even = reinterpret_cast<std::uintptr_t>(view.data) % (2 * size_of(view.dtype)) == 0;
  for (std::size_t axis = 0; axis < 3; ++axis) even &= view.shape[axis] <= 1 || view.stride[axis] % 2 == 0;
  return even;
}

/// `summed`: what its B holds.
GradientOutput output(const TensorView& view, double scale, const TensorView& summed, std::byte* scratch) {
  GradientOutput out{.map = {},
                     .mapped = !is_narrow(view) && may_be_mapped(view),
                     .to = DeviceRows(view),
                     .scratch = reinterpret_cast<float*>(scratch),
                     .dim = static_cast<int>(view.dim()),
                     .shift = row_shift(summed),
                     .narrow = is_narrow(view),
                     .aligned = has_aligned_pairs(view),
                     .scale = static_cast<float>(scale)};
  if (out.mapped) out.map = map_of_rows(view, kStoreRows);
  return out;
}

/// By as few copies, and with as little that is not needed, as the head dims allow.
GradientBoxes gradient_boxes(int columns, int second, int d, int d_v, bool packed) {
  if (columns % kChunk == 0 && d % kChunk == 0 && d_v % kChunk == 0) return GradientBoxes::chunks;
  if (second != columns) return GradientBoxes::rows;
  const bool has_room = packed && packed_columns(std::min(d, d_v)) >= 2 * columns;
  return has_room || (d == 2 * columns && d_v == d) ? GradientBoxes::halves : GradientBoxes::rows;
}

CUtensorMap map_of_summed(const TensorView& view, GradientBoxes boxes, int columns) {
  switch (boxes) {
    case GradientBoxes::chunks: return map_of_chunks(view, kBlock, columns / kChunk);
    case GradientBoxes::halves: return map_of_halves(view, kBlock, columns);
    case GradientBoxes::rows: break;
  }
  return map_of_rows(view, kBlock);
}

ChunkHeads heads_of(const BackwardArgs& args, const BackwardPlan::Chunk& chunk, int kv_count, bool packed) {
  const int q_first = (args.heads.kv_first + chunk.kv_first) * args.heads.group - args.heads.q_first;
  return {.group = args.heads.group,
          .kv_first = chunk.kv_first,
          .kv_count = kv_count,
          .q_first = q_first,
          .heads_q = static_cast<int>(args.q.heads()),
          .q_boxes = packed ? 0 : q_first,
          .kv_boxes = packed ? 0 : chunk.kv_first};
}

/// What the copy engine reads of the heads of a chunk.
struct Operands {
  TensorView q, k, v, dout;
};

/// The caller's tensors, or room for copies of a chunk's heads: [batch, head, row, packed_columns].
Operands operands(const BackwardArgs& args, const BackwardPlan& plan, std::byte* workspace) {
  if (!plan.packs) return {args.q, args.k, args.v, args.dout};
  const auto kv_count = static_cast<std::int64_t>(plan.offsets.front().kv_count);
  const auto view = [&](const TensorView& of, std::int64_t heads, std::int64_t offset) {
    TensorView packed =
        make_view(workspace + offset, of.dtype, Layout::bhsd, of.batch(), of.rows(), heads, packed_columns(of.dim()));
    packed.shape[3] = of.dim();
    return packed;
  };
  return {.q = view(args.q, kv_count * args.heads.group, plan.q_packed),
          .k = view(args.k, kv_count, plan.k_packed),
          .v = view(args.v, kv_count, plan.v_packed),
          .dout = view(args.dout, kv_count * args.heads.group, plan.dout_packed)};
}

void pack(const BackwardArgs& args, const ChunkHeads& heads, const Operands& to, Stream stream) {
  const PackedTensor tensors[kPackedTensors] = {{args.q, heads.q_first, to.q},
                                                {args.k, heads.kv_first, to.k},
                                                {args.v, heads.kv_first, to.v},
                                                {args.dout, heads.q_first, to.dout}};
  pack_heads(tensors, stream);
}

void run_chunks(const BackwardArgs& args, const BackwardPlan& plan, std::byte* workspace, int workers, Stream stream) {
  const Operands from = operands(args, plan, workspace);
  ScoreParams scores{.q = map_of_rows(from.q, kTileRows),
                     .dout = map_of_rows(from.dout, kTileRows),
                     .k = map_of_rows(from.k, kTileKeys),
                     .v = map_of_rows(from.v, kTileKeys),
                     .lists = {},
                     .heads = {},
                     .p = workspace + plan.p_offset,
                     .ds = workspace + plan.ds_offset,
                     .lse = DeviceRows(args.lse),
                     .delta = DeviceRows(args.delta),
                     .k_shift = row_shift(from.k),
                     .v_shift = row_shift(from.v),
                     .d = static_cast<int>(args.q.dim()),
                     .d_v = static_cast<int>(args.v.dim()),
                     .scale = static_cast<float>(args.scale)};
  const int columns = gradient_columns(scores.d, scores.d_v);
  const int second = second_gradient_column(scores.d, scores.d_v);
  const GradientBoxes boxes = gradient_boxes(columns, second, scores.d, scores.d_v, plan.packs);
  const auto summed = [&](const TensorView& view) { return map_of_summed(view, boxes, columns); };
  GradientParams gradients{.q = summed(from.q),
                           .k = summed(from.k),
                           .dout = summed(from.dout),
                           .boxes = boxes,
                           .second_column = second,
                           .lists = {},
                           .heads = {},
                           .p = scores.p,
                           .ds = scores.ds,
                           .dq = output(args.dq, args.scale, from.k, nullptr),
                           .dk = output(args.dk, args.scale, from.q, workspace + plan.dk_scratch),
                           .dv = output(args.dv, 1, from.dout, workspace + plan.dv_scratch)};
  int packed_first = -1;  // the KV head that the copies begin with
  for (const BackwardPlan::Chunk& chunk : plan.chunks) {
    const ChunkOffsets& lists = plan.offsets[static_cast<std::size_t>(chunk.lists)];
    scores.lists = gradients.lists = lists.at(workspace);
    scores.heads = gradients.heads = heads_of(args, chunk, lists.kv_count, plan.packs);
    if (plan.packs && chunk.kv_first != packed_first) pack(args, scores.heads, from, stream);
    packed_first = chunk.kv_first;
    launch_scores(scores, args.q.dtype, workers, stream);
    launch_gradients(gradients, args.q.dtype, columns, workers, stream);
  }
}

}  // namespace

std::optional<std::string> refuse_backward(const Problem&) {
  return std::nullopt;
}

std::int64_t backward_workspace_bytes(const Problem& problem, const CallShape& call, std::int64_t pool_bytes) {
  return plan_of({.slices = {call.slices.begin(), call.slices.end()},
                  .batch = call.batch,
                  .rows_q = call.rows_q,
                  .rows_k = call.rows_k,
                  .heads_kv = call.heads_kv,
                  .group = problem.h_q / problem.h_kv,
                  .d = problem.d,
                  .d_v = problem.d_v,
                  .workers = workers_of(call.device),
                  .init_dq = call.init_dq,
                  .init_dkv = call.init_dkv,
                  .narrow_dkv = call.narrow_dkv,
                  .pool_bytes = pool_bytes})
      ->workspace_bytes;
}

void backward(const BackwardArgs& args, const KernelContext& context, std::int64_t pool_bytes) {
  const BackwardShape shape = shape_of(args, context.device, pool_bytes);
  ROTUNDA_CHECK(args.init_dq || !is_narrow(args.dq));
  ROTUNDA_CHECK(args.init_dkv || !shape.narrow_dkv);
  const auto plan = plan_of(shape);
  ROTUNDA_CHECK(static_cast<std::int64_t>(context.workspace.size()) >= plan->workspace_bytes);
  std::byte* workspace = context.workspace.data();
  upload(plan->lists, workspace, context.stream);
  const auto rows = [&](std::int64_t offset) { return reinterpret_cast<const RowSpan*>(workspace + offset); };
  zero_rows(rows(plan->free_q), plan->free_q_count, args.dq, context.stream);
  zero_rows(rows(plan->free_k), plan->free_k_count, args.dk, context.stream);
  zero_rows(rows(plan->free_k), plan->free_k_count, args.dv, context.stream);
  if (!plan->chunks.empty()) run_chunks(args, *plan, workspace, shape.workers, context.stream);
}

}  // namespace rotunda::sm90::wide
