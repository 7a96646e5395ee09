// Rows that begin in the middle of a sector.
//
// L2 is read by sectors of 32 bytes. Of a head dim that is an odd multiple of 8, every second head's rows begin in the
// middle of one (axes [batch, row, head, dim], an even number of heads), and boxes of 128 bytes that begin there too
// come half as fast. So their boxes begin 8 elements before the rows do: everything lies 8 columns further right in
// shared memory, and since such a head dim is 8 short of a multiple of 16, there is room for that.
#pragma once

#include <cuda_runtime_api.h>

#include "rotunda/tensor.hpp"

namespace rotunda::sm90 {

/// By head of a tensor of 16-bit elements.
struct RowShift {
  static constexpr int kElements = 8;

  /// Elements that boxes begin before the rows: 0 or kElements.
  [[nodiscard]] __host__ __device__ int of(int head) const { return ((first ^ (odd_head & head)) & 1) * kElements; }

  [[nodiscard]] __host__ __device__ bool any() const { return (first | odd_head) != 0; }

  int first = 0;     ///< 1: the rows of head 0 begin in the middle of a sector
  int odd_head = 0;  ///< 1: those of head 1 begin otherwise, those of head 2 as those of head 0
};

/// None where rows of one head begin differently, or where there is no room. The tensor may be mapped (tensor_map.hpp).
[[nodiscard]] RowShift row_shift(const TensorView& view);

/// The shifted heads alone, from where their boxes begin, to the end of the rows; head h of the tensor is head
/// h >> shift.odd_head of them. What is read before a row is in the sector that the row begins in. The view itself
/// where no head is shifted.
[[nodiscard]] TensorView shifted_heads(const TensorView& view);

}  // namespace rotunda::sm90
