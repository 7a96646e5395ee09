#include "base/copy.hpp"

#include <algorithm>
#include <array>
#include <cstring>

#include "base/fail.hpp"
#include "base/half.hpp"

namespace rotunda {
namespace {

/// One loop over an axis that both views share; strides in elements.
struct Axis {
  std::int64_t extent = 1, from = 0, to = 0;
};

/// The axes of a copy, outermost first, joined as far as the strides allow; the last is the inner loop. Axes that are
/// not needed come first, with extent 1.
using Loops = std::array<Axis, 4>;

Loops plan_loops(const TensorView& from, const TensorView& to) {
  Loops axes;
  for (std::size_t i = 0; i < 4; ++i) axes[i] = {to.shape[i], from.stride[i], to.stride[i]};
  // In the order of the destination's memory, whatever its layout: then neighbours in memory are neighbours here.
  std::ranges::stable_sort(axes, [](const Axis& a, const Axis& b) {
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

/// Calls row(from, to) at the start of every inner loop.
template <class From, class To, class Row>
void for_each_row(const Loops& loops, const From* from, To* to, const Row& row) {
  const auto& [x, y, z, inner] = loops;
  for (std::int64_t i = 0; i < x.extent; ++i) {
    for (std::int64_t j = 0; j < y.extent; ++j) {
      for (std::int64_t k = 0; k < z.extent; ++k) {
        row(from + i * x.from + j * y.from + k * z.from, to + i * x.to + j * y.to + k * z.to);
      }
    }
  }
}

template <class T>
void copy_elements(const TensorView& from, const TensorView& to) {
  const Loops loops = plan_loops(from, to);
  const Axis inner = loops[3];
  const bool contiguous = inner.from == 1 && inner.to == 1;
  for_each_row(loops, static_cast<const T*>(from.data), static_cast<T*>(to.data), [&](const T* source, T* target) {
    if (contiguous) {
      std::memcpy(target, source, static_cast<std::size_t>(inner.extent) * sizeof(T));
    } else {
      for (std::int64_t i = 0; i < inner.extent; ++i) target[i * inner.to] = source[i * inner.from];
    }
  });
}

template <class From, class To>
void convert_elements(const TensorView& from, const TensorView& to) {
  const Loops loops = plan_loops(from, to);
  const Axis inner = loops[3];
  const bool contiguous = inner.from == 1 && inner.to == 1;
  const auto one = [](From value) { return static_cast<To>(static_cast<float>(value)); };
  for_each_row(loops, static_cast<const From*>(from.data), static_cast<To*>(to.data),
               [&](const From* source, To* target) {
                 if (contiguous) {  // by itself, so that the compiler can use vectors
                   for (std::int64_t i = 0; i < inner.extent; ++i) target[i] = one(source[i]);
                 } else {
                   for (std::int64_t i = 0; i < inner.extent; ++i) target[i * inner.to] = one(source[i * inner.from]);
                 }
               });
}

}  // namespace

void copy(const TensorView& from, const TensorView& to) {
  if (from.shape != to.shape || from.dtype != to.dtype) {
    fail(ErrorKind::internal, "copy of {} to {}: shapes and dtypes must be equal", describe(from), describe(to));
  }
  if (to.empty() || (from.data == to.data && from.stride == to.stride)) return;
  if (size_of(to.dtype) == 4) {
    copy_elements<std::uint32_t>(from, to);
  } else {
    copy_elements<std::uint16_t>(from, to);
  }
}

void convert(const TensorView& from, const TensorView& to) {
  if (from.shape != to.shape) {
    fail(ErrorKind::internal, "conversion of {} to {}: shapes must be equal", describe(from), describe(to));
  }
  if (from.dtype == to.dtype) return copy(from, to);
  if (to.empty()) return;
  dispatch_dtype(from.dtype, [&](auto f) {
    dispatch_dtype(to.dtype, [&](auto t) { convert_elements<decltype(f), decltype(t)>(from, to); });
  });
}

}  // namespace rotunda
