// How a call's rows lie in the views, and what that means to cuDNN.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernel/cudnn/graph.hpp"
#include "kernel/grouping.hpp"
#include "kernel/kernel.hpp"

namespace rotunda::cudnn {

/// Calls in the forms that cuDNN serves best. Padded ones become ragged: their tiles would read what lies beyond the
/// lengths, and a NaN there would spread. Backward refuses one row and one key, unless as a sequence with room around
/// it.
[[nodiscard]] std::vector<GroupedCall> served(std::vector<GroupedCall> calls, bool backward);

/// The rows of a view that a call is about, on one side: of a dense call [sequence, row, head, dim]; of a ragged one
/// the rows from its first to its last, what lies between them included.
[[nodiscard]] TensorView box(const TensorView& view, const GroupedCall& call, Side side);

/// The box is the whole of such a view.
[[nodiscard]] bool covers(const GroupedCall& call, std::int64_t batches, std::int64_t rows, Side side);

/// Row statistics as cuDNN takes them without question: [batch, head, row], dense.
[[nodiscard]] bool is_packed_statistics(const TensorView& view);

/// Query heads of a buffer that read KV heads at one ratio, as cuDNN has it: head i reads KV head i / (q / kv).
struct HeadRun {
  int q_begin = 0, q_heads = 0;
  int kv_begin = 0, kv_heads = 0;

  bool operator==(const HeadRun&) const = default;
};
/// All query heads, in as few runs as there can be; no two share a KV head.
[[nodiscard]] std::vector<HeadRun> head_runs(const HeadMap& map, int q_heads);

/// The key of a call's graph and the arrays that it reads, built operand by operand.
class GraphCall {
 public:
  /// Views are of the heads of one run.
  GraphCall(const GroupedCall& call, bool backward, DType dtype, int device);

  /// A tensor that lies in `box`, a box of the call on the operand's side.
  void set(Operand operand, const TensorView& box);

  GraphKey key;
  Bindings bindings;                      ///< tensors only
  std::vector<int> lengths_q, lengths_k;  ///< where key.lengths
  std::vector<std::vector<int>> offsets;  ///< key.offset_arrays of them
  /// Bytes of all arrays that a call with these sequences may need, whatever its strides.
  [[nodiscard]] std::int64_t array_bytes() const;

 private:
  [[nodiscard]] int offsets_of(const TensorView& box, Side side);

  struct OffsetKind {
    Side side;
    std::int64_t batch_stride, row_stride;
    bool operator==(const OffsetKind&) const = default;
  };

  const GroupedCall& call_;
  std::vector<OffsetKind> kinds_;
};

}  // namespace rotunda::cudnn
