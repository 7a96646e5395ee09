// Strided views into one dense buffer and back, for messages that carry several tensors: one launch for all of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/cuda/index.hpp"
#include "rotunda/device.hpp"
#include "rotunda/tensor.hpp"

namespace rotunda::cuda {

/// A view's place in the buffer: its elements in the order [batch, row, head, dim] from this byte on, a multiple of the
/// element's size. Places of one list don't overlap.
struct Move {
  TensorView view;
  std::int64_t offset = 0;
};

inline constexpr std::size_t kMostMoves = 8;

/// Copies up to kMostMoves views of any strides and dtypes, bit by bit, in one launch on the stream; several bytes at a
/// time as far as strides and addresses allow (16 where all are multiples of it). Reads and writes each byte once.
void pack(std::span<const Move> moves, std::byte* buffer, const Device& device, Stream stream,
          IndexWidth width = IndexWidth::automatic);
void unpack(const std::byte* buffer, std::span<const Move> moves, const Device& device, Stream stream,
            IndexWidth width = IndexWidth::automatic);

}  // namespace rotunda::cuda
