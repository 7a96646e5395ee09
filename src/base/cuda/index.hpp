// How element offsets are counted in a kernel: 32 bits where they suffice, since 64-bit division costs ten times as
// much, and else 64.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <initializer_list>
#include <limits>

#include "rotunda/tensor.hpp"

namespace rotunda::cuda {

/// automatic: by fits_narrow. The others are forced, for tests; narrow only where it fits.
enum class IndexWidth { automatic, narrow, wide };

/// The distance in elements from a view's first element to its last, 0 for an empty one.
[[nodiscard]] inline std::int64_t reach(const TensorView& view) {
  std::int64_t sum = 0;
  for (std::size_t axis = 0; axis < 4; ++axis) {
    if (view.shape[axis] > 1) sum += (view.shape[axis] - 1) * std::abs(view.stride[axis]);
  }
  return view.empty() ? 0 : sum;
}

/// Whether every offset and every element number of the views is at least 0 and less than 2^31.
[[nodiscard]] inline bool fits_narrow(std::initializer_list<TensorView> views) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
  for (const TensorView& view : views) {
    if (view.data == nullptr) continue;
    for (const std::int64_t stride : view.stride) {
      if (stride < 0) return false;
    }
    if (reach(view) > kMost || view.elements() > kMost) return false;
  }
  return true;
}

[[nodiscard]] inline bool is_narrow(IndexWidth width, std::initializer_list<TensorView> views) {
  return width == IndexWidth::automatic ? fits_narrow(views) : width == IndexWidth::narrow;
}

}  // namespace rotunda::cuda
