#include "base/cuda/pack.hpp"

#include <algorithm>

#include "base/cuda/check.hpp"
#include "base/cuda/divider.cuh"
#include "base/cuda/vectors.cuh"

namespace rotunda::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kUnroll = 4;  // units in flight a thread
constexpr std::int64_t kBlockUnits = kThreads * kUnroll;

/// A move in units of 2, 4, 8 or 16 bytes.
template <class Index>
struct UnitMove {
  std::byte* view = nullptr;
  std::byte* dense = nullptr;
  int unit = 16;
  unsigned first_block = 0;  ///< of the launch
  Index count = 0;           ///< units
  Divider<Index> in_row, heads, rows;
  Index stride[4] = {};  ///< in units, of batch, row, head, unit of a row
};

template <class Index>
struct MoveList {
  UnitMove<Index> moves[kMostMoves];
  int count = 0;
};

/// Where unit n of the dense order lies in the view, in units.
template <class Index>
__device__ Index place(const UnitMove<Index>& move, Index n) {
  const Index row_head = move.in_row.quotient(n), batch_row = move.heads.quotient(row_head);
  const Index batch = move.rows.quotient(batch_row);
  return (n - row_head * move.in_row.divisor()) * move.stride[3] +
         (row_head - batch_row * move.heads.divisor()) * move.stride[2] +
         (batch_row - batch * move.rows.divisor()) * move.stride[1] + batch * move.stride[0];
}

template <bool kPack, class Unit, class Index>
__device__ void copy_units(const UnitMove<Index>& move, Index first) {
  Unit* const view = reinterpret_cast<Unit*>(move.view);
  Unit* const dense = reinterpret_cast<Unit*>(move.dense);
  Unit units[kUnroll];
  Index at[kUnroll];
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) {
    const Index n = first + u * kThreads;
    if (n >= move.count) break;
    at[u] = place(move, n);
    units[u] = kPack ? view[at[u]] : dense[n];
  }
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) {
    const Index n = first + u * kThreads;
    if (n >= move.count) break;
    (kPack ? dense[n] : view[at[u]]) = units[u];
  }
}

template <bool kPack, class Index>
__global__ void __launch_bounds__(kThreads) move_kernel(const __grid_constant__ MoveList<Index> list) {
  int which = 0;
  while (which + 1 < list.count && blockIdx.x >= list.moves[which + 1].first_block) ++which;
  const UnitMove<Index>& move = list.moves[which];
  const Index first = static_cast<Index>(blockIdx.x - move.first_block) * static_cast<Index>(kBlockUnits) + threadIdx.x;
  switch (move.unit) {
    case 16: return copy_units<kPack, uint4>(move, first);
    case 8: return copy_units<kPack, uint2>(move, first);
    case 4: return copy_units<kPack, std::uint32_t>(move, first);
    default: return copy_units<kPack, std::uint16_t>(move, first);
  }
}

/// The most bytes that can be moved at a time.
int unit_of(const TensorView& view, const std::byte* dense) {
  const auto size = static_cast<std::int64_t>(size_of(view.dtype));
  const bool contiguous = view.dim() == 1 || view.stride[3] == 1;
  const auto fits = [&](std::int64_t unit) {
    bool all = contiguous && view.dim() * size % unit == 0 && reinterpret_cast<std::uintptr_t>(view.data) % unit == 0 &&
               reinterpret_cast<std::uintptr_t>(dense) % unit == 0;
    for (std::size_t axis = 0; axis < 3; ++axis) {
      all = all && (view.shape[axis] == 1 || view.stride[axis] * size % unit == 0);
    }
    return all;
  };
  for (const int unit : {16, 8, 4}) {
    if (unit > size && fits(unit)) return unit;
  }
  return static_cast<int>(size);
}

template <class Index>
UnitMove<Index> unit_move(const TensorView& view, std::byte* dense) {
  UnitMove<Index> move;
  const auto size = static_cast<std::int64_t>(size_of(view.dtype));
  move.view = static_cast<std::byte*>(view.data);
  move.dense = dense;
  move.unit = unit_of(view, dense);
  const std::int64_t elements = move.unit / size;  // of a unit
  const std::int64_t in_row = view.dim() / elements;
  move.count = static_cast<Index>(view.elements() / elements);
  move.in_row = Divider<Index>(in_row);
  move.heads = Divider<Index>(view.heads());
  move.rows = Divider<Index>(view.rows());
  for (std::size_t axis = 0; axis < 3; ++axis) {
    move.stride[axis] = view.shape[axis] == 1 ? 0 : static_cast<Index>(view.stride[axis] / elements);
  }
  move.stride[3] = elements > 1 ? 1 : static_cast<Index>(view.stride[3]);
  return move;
}

template <bool kPack>
void launch(std::span<const Move> moves, std::byte* buffer, const Device& device, Stream stream, IndexWidth width) {
  ROTUNDA_CHECK(moves.size() <= kMostMoves);
  bool narrow = width != IndexWidth::wide;
  for (const Move& move : moves) narrow = narrow && is_narrow(width, {move.view});
  dispatch_width(narrow, [&](auto index) {
    MoveList<decltype(index)> list;
    std::int64_t blocks = 0;
    for (const Move& move : moves) {
      if (move.view.empty()) continue;
      ROTUNDA_CHECK(move.offset % static_cast<std::int64_t>(size_of(move.view.dtype)) == 0);
      auto& next = list.moves[list.count++];
      next = unit_move<decltype(index)>(move.view, buffer + move.offset);
      next.first_block = static_cast<unsigned>(blocks);
      blocks += (static_cast<std::int64_t>(next.count) + kBlockUnits - 1) / kBlockUnits;
    }
    if (blocks == 0) return;
    ROTUNDA_CHECK(blocks <= 0x7fffffff);
    const CurrentDevice current(device.index);
    move_kernel<kPack><<<static_cast<unsigned>(blocks), kThreads, 0, native(stream)>>>(list);
    check_launch(kPack ? "pack" : "unpack");
  });
}

}  // namespace

void pack(std::span<const Move> moves, std::byte* buffer, const Device& device, Stream stream, IndexWidth width) {
  launch<true>(moves, buffer, device, stream, width);
}

void unpack(const std::byte* buffer, std::span<const Move> moves, const Device& device, Stream stream,
            IndexWidth width) {
  launch<false>(moves, const_cast<std::byte*>(buffer), device, stream, width);
}

}  // namespace rotunda::cuda
