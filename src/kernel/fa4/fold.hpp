// Batch entries as part of the rows or of the heads: the exported kernels' tensors of q, k, v have no batch axis.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "kernel/fa4/exported.hpp"
#include "rotunda/tensor.hpp"

namespace rotunda::fa4 {

/// Row `row` and head `head` of batch entry b are row b * rows + row and head b * heads + head of the folded tensor.
struct Fold {
  std::int64_t rows = 0, heads = 0;

  bool operator==(const Fold&) const = default;
};

/// The fold that all of these views allow; nothing where there is none, and each entry has to be a call of its own.
[[nodiscard]] std::optional<Fold> common_fold(std::span<const TensorView> views);

/// A view as the kernels that read tables take it.
[[nodiscard]] Tensor3 folded(const TensorView& view, const Fold& fold);

/// As the others do, with rows up to `end`.
[[nodiscard]] Tensor4 whole(const TensorView& view, std::int64_t end);

/// A view of one batch entry.
[[nodiscard]] TensorView entry(const TensorView& view, std::int64_t batch);

}  // namespace rotunda::fa4
