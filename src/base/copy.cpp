#include "base/copy.hpp"

#include <cstring>

#include "base/fail.hpp"
#include "base/half.hpp"
#include "base/loops.hpp"

namespace rotunda {
namespace {

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
