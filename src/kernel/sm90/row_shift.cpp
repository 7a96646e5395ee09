#include "kernel/sm90/row_shift.hpp"

#include <cstddef>
#include <cstdint>

namespace rotunda::sm90 {

RowShift row_shift(const TensorView& view) {
  constexpr std::uintptr_t kHalfSector = 16;
  const auto halves = [&](std::size_t axis) {
    if (view.shape[axis] <= 1) return 0;
    return static_cast<int>(static_cast<std::uintptr_t>(view.stride[axis]) * size_of(view.dtype) / kHalfSector % 2);
  };
  const bool has_room = view.dim() % (2 * RowShift::kElements) == RowShift::kElements;
  if (!has_room || halves(0) != 0 || halves(1) != 0) return {};
  return {.first = static_cast<int>(reinterpret_cast<std::uintptr_t>(view.data) / kHalfSector % 2),
          .odd_head = halves(2)};
}

TensorView shifted_heads(const TensorView& view) {
  const RowShift shift = row_shift(view);
  if (!shift.any()) return view;
  TensorView heads = view;
  if (shift.odd_head != 0) {
    const std::int64_t begin = 1 - shift.first;
    heads = view.narrow_heads(begin, view.heads() - begin);
    heads.shape[2] = (heads.shape[2] + 1) / 2;
    heads.stride[2] *= 2;
  }
  // The copy engine reads a map's first bytes where a box leaves the tensor: these must be there.
  heads.data =
      static_cast<std::byte*>(heads.data) - RowShift::kElements * static_cast<std::ptrdiff_t>(size_of(view.dtype));
  heads.shape[3] += RowShift::kElements;
  return heads;
}

}  // namespace rotunda::sm90
