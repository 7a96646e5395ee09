// The tensors of a problem by name: their shapes in files, their views, their memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "rotunda/attention.hpp"
#include "rotunda/problem.hpp"

namespace rotunda::cli {

/// What a tensor's extents come from.
struct TensorKind {
  const char* name;
  TensorView Tensors::*view;
  enum class Rows { q, k, none } rows;
  enum class Heads { q, kv } heads;
  enum class Dim { d, d_v, row_statistic, head_value } dim;  ///< the last two are fp32: [b, h, s] and [h]
};

/// q, k, v, with grad dout, with a learnable sink `sink`.
[[nodiscard]] std::vector<TensorKind> input_kinds(const Problem& problem);
/// out, lse, with max_logit that, with grad dq, dk, dv, with a learnable sink and grad dsink.
[[nodiscard]] std::vector<TensorKind> output_kinds(const Problem& problem);
/// @throws Error internal for an unknown name
[[nodiscard]] const TensorKind& kind_of(const std::string& name);

/// Rows of both sides' buffers: the whole problem's or one rank's.
struct RowCounts {
  std::int64_t q = 0, k = 0;
};
[[nodiscard]] RowCounts whole_rows(const Problem& problem);

[[nodiscard]] DType dtype_of(const Problem& problem, const TensorKind& kind);
/// The format's code: "BF16", "F16", "F32".
[[nodiscard]] const char* file_code(DType dtype);
/// Shape in a file, by the problem's layout: bshd [b, s, h, d], sbhd [s, b, h, d], bhsd [b, h, s, d], thd [t, h, d];
/// lse [b, h, s] or [h, t]; values of heads [h].
[[nodiscard]] std::vector<std::int64_t> file_shape(const Problem& problem, const TensorKind& kind, RowCounts rows);
/// View of memory that holds the tensor in file_shape's order.
[[nodiscard]] TensorView view_of(const Problem& problem, const TensorKind& kind, RowCounts rows, void* data);

/// Owns the memory of some tensors of a problem.
class TensorStore {
 public:
  /// Uninitialised memory for the kinds, seen by `views`. @throws Error unsupported where the machine can't hold it
  void allocate(const Problem& problem, RowCounts rows, const std::vector<TensorKind>& kinds);
  /// Sees memory that somebody else owns.
  void attach(const TensorKind& kind, const TensorView& view) { views.*kind.view = view; }

  Tensors views;

 private:
  std::vector<std::unique_ptr<std::byte[]>> memory_;
};

/// Bytes of the kinds together. @throws Error unsupported where 64 bits can't count them or the machine lacks them
[[nodiscard]] std::int64_t checked_bytes(const Problem& problem, RowCounts rows, const std::vector<TensorKind>& kinds);

}  // namespace rotunda::cli
