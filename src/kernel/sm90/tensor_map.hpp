// Maps of tensors for the copy engine (TMA), made on the host. Boxes are swizzled by 128 bytes: 64 elements of a row
// (32 of fp32), by rows. What lies outside the tensor arrives as 0, so a head dim needs no padding in memory.
#pragma once

#include <cuda.h>

#include "rotunda/tensor.hpp"

namespace rotunda::sm90 {

constexpr int kChunkBytes = 128;         ///< of a row, in a box
constexpr int kChunk = kChunkBytes / 2;  ///< 16-bit elements
/// Bytes that addresses and strides of a mapped tensor are multiples of.
constexpr int kMapAlignment = 16;

/// Whether addresses and strides allow a map; there is none of an empty view.
[[nodiscard]] bool may_be_mapped(const TensorView& view);

/// Axes [dim, row, head, batch]; a box is 128 bytes of box_rows rows, from any element on: `ptx::Box4` is its place.
/// The view must not be empty; strides of axes of one element may be anything. @throws Error device
[[nodiscard]] CUtensorMap map_of_rows(const TensorView& view, int box_rows);

/// Axes [64 elements, row, chunk of 64, head, batch]; a box is box_chunks chunks of box_rows rows: `ptx::Box5` is its
/// place. 16-bit tensors. Only whole chunks of the head dim are in the map (at least one). @throws Error device
[[nodiscard]] CUtensorMap map_of_chunks(const TensorView& view, int box_rows, int box_chunks);

/// Axes [half_columns, row, half, head, batch]; a box is 64 columns of a half, with zeros beyond it, of box_rows rows:
/// `ptx::Box5` is its place. 16-bit tensors, whose rows have memory for both halves. @throws Error device
[[nodiscard]] CUtensorMap map_of_halves(const TensorView& view, int box_rows, int half_columns);

}  // namespace rotunda::sm90
