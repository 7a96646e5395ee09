// The device side of the backward pass. Each enqueues on the stream of the current device. @throws Error device
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernel/sm90/wide/backward_params.hpp"
#include "rotunda/device.hpp"
#include "rotunda/problem.hpp"

namespace rotunda::sm90::wide {

/// Writes `bytes` to device memory at `to`, 16-byte aligned. They travel in the launches themselves: `bytes` may change
/// as soon as this returns, and a graph keeps its own copy.
void upload(std::span<const std::byte> bytes, std::byte* to, Stream stream);

/// Zeroes rows of a gradient; `rows` are `count` of them in device memory.
void zero_rows(const RowSpan* rows, std::int64_t count, const TensorView& gradient, Stream stream);

/// Heads [first, first + to.heads()) of `from`, as far as it has them, and room for their copies. Both may be mapped
/// (tensor_map.hpp).
struct PackedTensor {
  TensorView from;
  int first;
  TensorView to;
};
inline constexpr std::size_t kPackedTensors = 4;  ///< q, k, v, dout
void pack_heads(std::span<const PackedTensor, kPackedTensors> tensors, Stream stream);

void launch_scores(const ScoreParams& params, DType dtype, int workers, Stream stream);

/// `columns`: of a thread block (gradient_columns).
void launch_gradients(const GradientParams& params, DType dtype, int columns, int workers, Stream stream);

}  // namespace rotunda::sm90::wide
