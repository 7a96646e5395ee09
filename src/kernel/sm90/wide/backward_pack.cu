// Copies of a chunk's q, k, v and dout whose rows begin with a line of 128 bytes.
#include <cuda_runtime.h>

#include <algorithm>

#include "base/cuda/check.hpp"
#include "kernel/sm90/tensor_map.hpp"
#include "kernel/sm90/wide/backward_launch.hpp"

namespace rotunda::sm90::wide {
namespace {

struct PackedRows {
  DeviceRows from, to;
  std::int64_t vectors;  ///< of 16 bytes, in all rows of a head
  int in_row;            ///< of them
  int first, from_heads, heads;
};
struct PackParams {
  PackedRows tensors[kPackedTensors];
};

/// blockIdx.y: the head; z: batch entry and tensor.
__global__ void pack_kernel(const __grid_constant__ PackParams p) {
  const PackedRows& one = p.tensors[blockIdx.z % kPackedTensors];
  const auto batch = static_cast<int>(blockIdx.z / kPackedTensors), head = static_cast<int>(blockIdx.y);
  const int source = one.first + head;
  if (head >= one.heads || source < 0 || source >= one.from_heads) return;
  const std::int64_t step = std::int64_t{gridDim.x} * blockDim.x;
  for (std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < one.vectors; i += step) {
    const std::int64_t row = i / one.in_row, vector = i - row * one.in_row;
    reinterpret_cast<uint4*>(one.to.at<std::uint16_t>(batch, row, head))[vector] =
        reinterpret_cast<const uint4*>(one.from.at<const std::uint16_t>(batch, row, source))[vector];
  }
}

}  // namespace

void pack_heads(std::span<const PackedTensor, kPackedTensors> tensors, Stream stream) {
  constexpr int kThreads = 256;
  constexpr std::int64_t kMostBlocks = 256;
  PackParams params;
  std::int64_t most_heads = 0, most_vectors = 0;
  for (std::size_t i = 0; i < kPackedTensors; ++i) {
    const auto& [from, first, to] = tensors[i];
    ROTUNDA_CHECK(may_be_mapped(from) && may_be_mapped(to));
    const std::int64_t in_row = from.dim() * static_cast<std::int64_t>(size_of(from.dtype)) / kMapAlignment;
    params.tensors[i] = {.from = DeviceRows(from),
                         .to = DeviceRows(to),
                         .vectors = to.rows() * in_row,
                         .in_row = static_cast<int>(in_row),
                         .first = first,
                         .from_heads = static_cast<int>(from.heads()),
                         .heads = static_cast<int>(to.heads())};
    most_heads = std::max(most_heads, to.heads());
    most_vectors = std::max(most_vectors, params.tensors[i].vectors);
  }
  const dim3 grid(static_cast<unsigned>(std::min((most_vectors + kThreads - 1) / kThreads, kMostBlocks)),
                  static_cast<unsigned>(most_heads),
                  static_cast<unsigned>(tensors[0].to.batch() * static_cast<std::int64_t>(kPackedTensors)));
  pack_kernel<<<grid, kThreads, 0, cuda::native(stream)>>>(params);
  cuda::check_launch("pack_kernel");
}

}  // namespace rotunda::sm90::wide
