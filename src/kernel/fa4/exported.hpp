// FlashAttention-4's kernels as tools/fa4 exported them at build time: found, loaded, launched.
//
// A kernel reads shapes and strides when it is launched, head dims too: one whose tiles are wide enough serves a
// problem. It checks nothing.
#pragma once

#include <cstdint>
#include <span>

#include "rotunda/device.hpp"
#include "rotunda/tensor.hpp"

namespace rotunda::fa4 {

/// Where the sums of a tile of rows lie, fp32 in the order of the registers that they come from: warp groups one after
/// the other, in each the fragments of wgmma (PTX ISA, "Register fragments for wgmma"), four numbers of each thread at
/// a time. The product that makes them is of [rows, width], or `turned` of [width, rows].
struct SumTile {
  int rows = 0;
  int row_groups = 1, column_groups = 1;  ///< warp groups along the product's rows and columns
  bool turned = false;
};

/// `backward` adds dK and dV to sums, `direct` writes them in 16 bits, `deterministic` adds them in one order.
enum class Kind { forward, backward, direct, deterministic };

/// A kernel of this build.
struct Exported {
  const char* name;
  bool one;  ///< takes one slice of every batch entry, without a left bound, and no tables; its twin takes any
  Kind kind;
  DType dtype;
  int d, d_v;      ///< its tiles' widths
  int tile_q = 0;  ///< forward: query rows of a block
  SumTile dq, dkv;
  void (*init)(void**);
  void (*load)(void**);
  void (*run)(void**, std::int32_t);
};

[[nodiscard]] std::span<const Exported> all_exported();

/// The narrowest that takes tables and serves head dims d and d_v; nullptr where the build has none.
[[nodiscard]] const Exported* find_exported(Kind kind, DType dtype, int d, int d_v);

/// The same kernel for one slice of every batch entry; nullptr where there is none.
[[nodiscard]] const Exported* twin_for_one(const Exported& kernel);

// Tensors as the C interface has them: extents, then strides in elements, but for the last of 1.
struct Tensor3 {
  void* data;
  std::int32_t shape[3];
  std::int64_t stride[2];
};
struct Tensor4 {
  void* data;
  std::int32_t shape[4];
  std::int64_t stride[3];
};
struct Statistics {  ///< [batch, head, row]; any strides
  void* data;
  std::int32_t shape[3];
  std::int64_t stride[3];
};
struct Sums {  ///< [head, row * width]
  void* data;
  std::int32_t shape[2];
  std::int64_t stride[1];
};
struct Ints {
  void* data;
  std::int32_t shape[1];
};

/// What a launch reads of its slices (tables.hpp), in the device's memory.
struct LaunchTables {
  Ints first_q, first_k, used_q, used_k, blocks_before, block_owner;
  std::int32_t grid_rows = 0;
};

/// A launch over one slice of every batch entry, without a left bound (class One in tools/fa4/slices.py), in that
/// order.
struct OneSlice {
  std::int32_t batches, blocks, rows_q, rows_k, right;
  std::int32_t q_row, k_row;
  std::int32_t q_sum, q_sum_step, k_sum, k_sum_step;
  std::int32_t group, q_first, kv_first, flags;
};

/// q, k, v, out, dout, dK or dV: folded for kernels that read tables; for the others [batch, row, head, dim], of rows
/// up to the slice's last.
struct Operand {
  Tensor3 folded;
  Tensor4 whole;
};

/// Arguments of the exported functions, in their order.
struct ForwardCall {
  Operand q, k, v, out;
  Tensor4 acc;
  Statistics lse, low;
  float scale = 1;
  LaunchTables tables;
  OneSlice one;  ///< in place of tables
};
struct BackwardCall {
  Operand q, k, v, dout;
  Sums lse_log2, delta, dq;
  Sums dk, dv;                   ///< but for direct
  Operand direct_dk, direct_dv;  ///< direct
  float scale = 1;
  LaunchTables tables;
  OneSlice one;                       ///< in place of tables
  Tensor4 turns_q, turns_k, turns_v;  ///< deterministic: counters of the order in which sums are added, zero
};

/// Enqueue on `stream` of the current device. The first call of a kernel on a device loads it there, which a capture
/// allows. @throws Error device
void launch(const Exported& kernel, ForwardCall& call, Stream stream);
void launch(const Exported& kernel, BackwardCall& call, Stream stream);

/// Loads a kernel on the current device unless it is there.
void load(const Exported& kernel);

}  // namespace rotunda::fa4
