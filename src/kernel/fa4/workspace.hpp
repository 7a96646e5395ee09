// What both directions do with workspaces and folds.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/cuda/check.hpp"
#include "base/fail.hpp"
#include "kernel/fa4/fold.hpp"
#include "kernel/fa4/passes.hpp"
#include "kernel/kernel.hpp"

namespace rotunda::fa4 {

/// A call's workspace, laid out. @throws Error internal where there is too little
class Workspace {
 public:
  Workspace(const KernelContext& context, const WorkspaceLayout& layout) {
    const auto bytes = static_cast<std::int64_t>(context.workspace.size());
    if (bytes < layout.bytes()) {
      fail(ErrorKind::internal, "the fa4 kernel needs {} bytes of workspace and was given {}", layout.bytes(), bytes);
    }
    const auto address = reinterpret_cast<std::uintptr_t>(context.workspace.data());
    constexpr auto kAlignment = static_cast<std::uintptr_t>(WorkspaceLayout::kAlignment);
    base_ = context.workspace.data() + (kAlignment - address % kAlignment) % kAlignment;
  }

  template <class T>
  [[nodiscard]] T* at(std::int64_t offset) const {
    return reinterpret_cast<T*>(base_ + offset);
  }
  void zero(std::int64_t offset, std::int64_t bytes, Stream stream) const {
    if (bytes > 0) {
      ROTUNDA_CUDA(cudaMemsetAsync(base_ + offset, 0, static_cast<std::size_t>(bytes), cuda::native(stream)));
    }
  }
  /// A tensor for an argument that is not touched; kernels describe it to TMA all the same.
  [[nodiscard]] Operand nothing(std::int64_t dim) const {
    const std::int64_t step = (dim + 7) / 8 * 8;
    const auto width = static_cast<std::int32_t>(dim);
    return {{base_, {1, 1, width}, {step, step}}, {base_, {1, 1, 1, width}, {step, step, step}}};
  }

 private:
  std::byte* base_ = nullptr;
};

/// How the tensors of a call fold.
struct Folds {
  Fold q, k;

  /// `end` is that of a launch over one slice; else 0. There may be no keys, or no rows.
  [[nodiscard]] Operand keys(const TensorView& view, std::int64_t end, const Workspace& workspace) const {
    return operand(view, k, end, workspace);
  }
  [[nodiscard]] Operand queries(const TensorView& view, std::int64_t end, const Workspace& workspace) const {
    return operand(view, q, end, workspace);
  }

 private:
  [[nodiscard]] static Operand operand(const TensorView& view, const Fold& fold, std::int64_t end,
                                       const Workspace& workspace) {
    if (view.empty()) return workspace.nothing(view.dim());
    return {folded(view, fold), whole(view, end)};
  }
};

template <class Args>
[[nodiscard]] CallExtents extents_of(const Args& args) {
  return {args.q.batch(), args.q.rows(), args.k.rows(), args.q.heads(), args.k.heads()};
}

/// The views of a call, for one batch entry. Each direction has its own.
[[nodiscard]] ForwardArgs entry_of(const ForwardArgs& args, std::int64_t batch);
[[nodiscard]] BackwardArgs entry_of(const BackwardArgs& args, std::int64_t batch);

/// Calls `body` with all of the call where its tensors fold, else with one batch entry after the other.
template <class Args, class Body>
void for_each_fold(const Args& args, std::span<const TensorView> queries, std::span<const TensorView> keys,
                   Body&& body) {
  const auto fold_q = common_fold(queries), fold_k = common_fold(keys);
  if (fold_q && fold_k) return body(args, Folds{*fold_q, *fold_k});
  for (std::int64_t batch = 0; batch < args.q.batch(); ++batch) {
    std::vector<Slice> slices;
    for (Slice slice : args.slices) {
      if (slice.batch != batch) continue;
      slice.batch = 0;
      slices.push_back(slice);
    }
    Args part = entry_of(args, batch);
    part.slices = slices;
    body(part, Folds{});
  }
}

}  // namespace rotunda::fa4
