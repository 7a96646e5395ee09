#include "kernel/fa4/fold.hpp"

#include <algorithm>
#include <limits>

namespace rotunda::fa4 {
namespace {

constexpr std::int64_t kStep = 8;  // elements; TMA takes strides of 16 bytes and more, also of axes of 1

std::int64_t stride_of(const TensorView& view, std::size_t axis) {
  return view.shape[axis] > 1 ? view.stride[axis] : std::max(kStep, (view.dim() + kStep - 1) / kStep * kStep);
}

/// Steps of an axis from one batch entry to the next, for all views alike.
std::optional<std::int64_t> steps(std::span<const TensorView> views, std::size_t axis) {
  std::optional<std::int64_t> result;
  for (const TensorView& view : views) {
    const std::int64_t stride = stride_of(view, axis);
    if (stride <= 0 || view.stride[0] < 0 || view.stride[0] % stride != 0) return std::nullopt;
    const std::int64_t own = view.stride[0] / stride;
    if (own * view.batch() > std::numeric_limits<std::int32_t>::max() / 2 || own != result.value_or(own)) {
      return std::nullopt;
    }
    result = own;
  }
  return result;
}

}  // namespace

std::optional<Fold> common_fold(std::span<const TensorView> views) {
  const auto one_entry = [](const TensorView& view) { return view.batch() <= 1 || view.empty(); };
  if (std::all_of(views.begin(), views.end(), one_entry)) return Fold{};
  if (const auto rows = steps(views, 1)) return Fold{*rows, 0};
  if (const auto heads = steps(views, 2)) return Fold{0, *heads};
  return std::nullopt;
}

Tensor3 folded(const TensorView& view, const Fold& fold) {
  const auto extent = [&](std::int64_t own, std::int64_t step) {
    return static_cast<std::int32_t>(own + step * std::max<std::int64_t>(0, view.batch() - 1));
  };
  return {view.data,
          {extent(view.rows(), fold.rows), extent(view.heads(), fold.heads), static_cast<std::int32_t>(view.dim())},
          {stride_of(view, 1), stride_of(view, 2)}};
}

Tensor4 whole(const TensorView& view, std::int64_t end) {
  const auto number = [](std::int64_t value) { return static_cast<std::int32_t>(value); };
  return {view.data,
          {number(view.batch()), number(end), number(view.heads()), number(view.dim())},
          {stride_of(view, 0), stride_of(view, 1), stride_of(view, 2)}};
}

TensorView entry(const TensorView& view, std::int64_t batch) {
  TensorView result = view;
  result.shape[0] = 1;
  if (view.data != nullptr) {
    result.data =
        static_cast<std::byte*>(view.data) + batch * view.stride[0] * static_cast<std::int64_t>(size_of(view.dtype));
  }
  return result;
}

}  // namespace rotunda::fa4
