// What a launch of the backward kernels gets.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernel/sm90/row_shift.hpp"
#include "kernel/sm90/wide/backward_work.hpp"
#include "rotunda/tensor.hpp"

namespace rotunda::sm90::wide {

/// A view's memory and strides in elements.
struct DeviceRows {
  void* data = nullptr;
  std::int64_t batch = 0, row = 0, head = 0;

  DeviceRows() = default;
  explicit DeviceRows(const TensorView& view)
      : data(view.data), batch(view.stride[0]), row(view.stride[1]), head(view.stride[2]) {}

  template <class T>
  [[nodiscard]] __host__ __device__ T* at(std::int64_t b, std::int64_t r, std::int64_t h) const {
    return static_cast<T*>(data) + b * batch + r * row + h * head;
  }
};

/// A chunk's heads. Its query heads are counted from the first that KV head kv_first could have, so that all KV heads
/// have `group`; those outside the buffer, which may hold a part of the heads, are left out.
struct ChunkHeads {
  int group, kv_first, kv_count;
  int q_first;            ///< the buffer's number of the chunk's query head 0; may be negative
  int heads_q;            ///< of the buffer
  int q_boxes, kv_boxes;  ///< as q_first and kv_first, but in what the copy engine reads: 0 where that is packed

  [[nodiscard]] __device__ int q_head(int head) const { return q_first + head; }
  [[nodiscard]] __device__ int kv_head(int head) const { return kv_first + head / group; }
  [[nodiscard]] __device__ int q_box(int head) const { return q_boxes + head; }
  [[nodiscard]] __device__ int kv_box(int head) const { return kv_boxes + head / group; }
  [[nodiscard]] __device__ bool has(int head) const { return q_head(head) >= 0 && q_head(head) < heads_q; }
};

struct ScoreParams {
  CUtensorMap q, dout;  ///< boxes of kTileRows rows
  CUtensorMap k, v;     ///< boxes of kTileKeys rows
  ChunkLists lists;
  ChunkHeads heads;
  void *p, *ds;               ///< the pools
  DeviceRows lse, delta;      ///< fp32
  RowShift k_shift, v_shift;  ///< what q and dout follow
  int d, d_v;
  float scale;
  int lag = 2;  ///< stages that the second consumer warpgroup is behind the first: 1 to 3
};

constexpr int kStoreRows = 16;  ///< of a gradient tile: what a warp has of it

/// A gradient: 16-bit or fp32, in the buffer of the caller or (partial sums) in scratch.
struct GradientOutput {
  CUtensorMap map;      ///< of `to` where it is fp32 and may be mapped: boxes of kStoreRows rows
  bool mapped = false;  ///< whether there is one
  DeviceRows to;
  float* scratch = nullptr;  ///< [cell][row][dim], where 16-bit results are summed over chunks
  int dim = 0;
  RowShift shift;        ///< what its columns have, by the head of B
  bool narrow = false;   ///< 16 bits
  bool aligned = false;  ///< pairs of columns may be stored at once
  float scale = 1;
};

/// What B is copied by, kBlock rows each.
enum class GradientBoxes : std::uint8_t {
  rows,    ///< 64 columns from any on
  halves,  ///< 64 columns of a half of the head dim, which is what a thread block has
  chunks,  ///< all columns of a thread block
};

struct GradientParams {
  CUtensorMap q, k, dout;
  GradientBoxes boxes;
  int second_column;  ///< where a team's second block begins
  ChunkLists lists;
  ChunkHeads heads;
  const void *p, *ds;
  GradientOutput dq, dk, dv;

  [[nodiscard]] __device__ const GradientOutput& output(Gradient gradient) const {
    return gradient == Gradient::dq ? dq : gradient == Gradient::dk ? dk : dv;
  }
};

}  // namespace rotunda::sm90::wide
