#include "base/cuda/check.hpp"
#include "kernel/sm90/ptx/cluster.cuh"
#include "kernel/sm90/wide/segment.cuh"

namespace rotunda::sm90::wide {
namespace {

constexpr int kThreads = 1024;
constexpr int kWarps = kThreads / 32;
/// Items of this many heads are side by side where rows differ in length; with equal rows a head at a time keeps all
/// clusters on the same keys.
constexpr int kUnequalHeads = 2;
/// An item has two tiles at least, because two warpgroups take turns: one of no keys is added where need be.
constexpr int kLeastTiles = 2;

struct Scratch {
  int *tiles, *first, *last;

  __device__ explicit Scratch(const WorkList& list)
      : tiles(list.slices_of_block), first(tiles + list.block_count), last(first + list.block_count) {}
};

/// A warp adds a slice to the blocks that it meets, a lane a block. Sums and extremes of integers: any order will do.
__device__ void add_slice(const WorkList& list, const Scratch& scratch, int number) {
  const Slice slice = list.slices[number];
  if (slice.q_len <= 0) return;
  const int in_batch = list.block_count / list.batches;
  const std::int64_t last = (slice.q_begin + slice.q_len - 1) / kBlockRows;
  for (std::int64_t i = slice.q_begin / kBlockRows + threadIdx.x % 32; i <= last; i += 32) {
    const int tiles = segment_of(slice, i * kBlockRows).tiles();
    if (tiles == 0) continue;
    const std::int64_t block = slice.batch * in_batch + i;
    atomicAdd(scratch.tiles + block, tiles);
    atomicMin(scratch.first + block, number);
    atomicMax(scratch.last + block, number);
  }
}

/// Blocks that come before block i: longer ones, and of equal ones those of smaller number. All threads take part.
__device__ int rank_of(const Scratch& scratch, int count, int i) {
  __shared__ int staged[kThreads];
  const int mine = i < count ? __ldcg(scratch.tiles + i) : 0;
  int rank = 0;
  for (int first = 0; first < count; first += kThreads) {
    const int here = first + static_cast<int>(threadIdx.x);
    __syncthreads();
    staged[threadIdx.x] = here < count ? __ldcg(scratch.tiles + here) : -1;
    __syncthreads();
    const int end = min(kThreads, count - first);
#pragma unroll 8
    for (int j = 0; j < end; ++j) rank += staged[j] > mine || (staged[j] == mine && first + j < i) ? 1 : 0;
  }
  return rank;
}

/// One block of threads: the list is short, and its making waits for nothing but itself.
__global__ void __launch_bounds__(kThreads) make_list_kernel(const WorkList list) {
  const Scratch scratch(list);
  const int thread = static_cast<int>(threadIdx.x), count = list.block_count;
  ptx::launch_dependents();
  for (int i = thread; i < count; i += kThreads) {
    scratch.tiles[i] = 0;
    scratch.first[i] = list.slice_count;
    scratch.last[i] = -1;
  }
  __syncthreads();
  for (int i = thread / 32; i < list.slice_count; i += kWarps) add_slice(list, scratch, i);
  __syncthreads();

  const int in_batch = count / list.batches, most = (count + kThreads - 1) / kThreads * kThreads;
  int blocks = 0;
  bool equal = true;
  const int sample = __ldcg(scratch.tiles);
  for (int i = thread; i < most; i += kThreads) {
    const int rank = rank_of(scratch, count, i);
    const int tiles = i < count ? __ldcg(scratch.tiles + i) : 0;
    equal = __syncthreads_and(i >= count || tiles == sample) != 0 && equal;
    blocks += __syncthreads_count(tiles > 0);
    if (i >= count) continue;
    list.blocks[rank] = {i / in_batch, i % in_batch * kBlockRows, __ldcg(scratch.first + i), __ldcg(scratch.last + i),
                         tiles == 0 ? 0 : max(tiles, kLeastTiles)};
  }
  if (thread == 0) *list.head = {blocks, equal ? 1 : kUnequalHeads, 0};
}

std::int64_t block_count(std::int64_t batches, std::int64_t rows) {
  return batches * ((rows + kBlockRows - 1) / kBlockRows);
}

constexpr std::int64_t kHeadBytes = 16;
static_assert(sizeof(WorkList::Head) <= kHeadBytes);

}  // namespace

std::int64_t work_list_bytes(std::int64_t batches, std::int64_t rows) {
  const auto of_block = static_cast<std::int64_t>(sizeof(Block) + 3 * sizeof(int));
  return kHeadBytes + block_count(batches, rows) * of_block;
}

WorkList make_work_list(const ForwardArgs& args, std::byte* memory, Stream stream) {
  const std::int64_t blocks = block_count(args.q.batch(), args.q.rows());
  WorkList list;
  list.head = reinterpret_cast<WorkList::Head*>(memory);
  list.blocks = reinterpret_cast<Block*>(memory + kHeadBytes);
  list.slices_of_block = reinterpret_cast<int*>(list.blocks + blocks);
  list.slices = args.device_slices;
  list.slice_count = static_cast<int>(args.slices.size());
  list.block_count = static_cast<int>(blocks);
  list.batches = static_cast<int>(args.q.batch());
  list.rows = static_cast<int>(args.q.rows());
  make_list_kernel<<<1, kThreads, 0, cuda::native(stream)>>>(list);
  cuda::check_launch("sm90 work list");
  return list;
}

}  // namespace rotunda::sm90::wide
