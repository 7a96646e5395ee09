// A copy between two strided views as at most four nested loops.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "rotunda/tensor.hpp"

namespace rotunda {

/// One loop over an axis that both views share; strides in elements.
struct Axis {
  std::int64_t extent = 1, from = 0, to = 0;
};

/// The axes of a copy, outermost first, joined as far as the strides allow; the last is the inner loop. Axes that are
/// not needed come first, with extent 1.
using Loops = std::array<Axis, 4>;

[[nodiscard]] inline Loops plan_loops(const TensorView& from, const TensorView& to) {
  Loops axes;
  for (std::size_t i = 0; i < 4; ++i) axes[i] = {to.shape[i], from.stride[i], to.stride[i]};
  // (nvcc 13.0 finds no std::ranges::stable_sort for an array.) In the order of the destination's memory, whatever its
  // layout: then neighbours in memory are neighbours here.
  std::stable_sort(axes.begin(), axes.end(), [](const Axis& a, const Axis& b) {
    return (a.extent == 1) != (b.extent == 1) ? a.extent == 1 : a.to > b.to;
  });
  Loops loops;
  std::size_t last = 3;
  loops[last] = axes[3];
  for (std::size_t i = 3; i-- > 0;) {
    const Axis& outer = axes[i];
    Axis& inner = loops[last];
    if (outer.extent == 1) continue;
    if (outer.from == inner.from * inner.extent && outer.to == inner.to * inner.extent) {
      inner.extent *= outer.extent;
    } else {
      loops[--last] = outer;
    }
  }
  if (loops[3].extent == 1) loops[3] = {1, 1, 1};
  return loops;
}

}  // namespace rotunda
