// Copies between strided host views.
#pragma once

#include "rotunda/tensor.hpp"

namespace rotunda {

/// to = from: views of the same shape and dtype, any strides, no overlap (other than being the same memory seen alike,
/// which is left as it is). The longest runs that are contiguous on both sides move by memcpy.
/// Bytes are carried as they are: a NaN keeps its payload. @throws Error internal where shapes or dtypes differ
void copy(const TensorView& from, const TensorView& to);

/// to = from, converted to to's dtype: widening is exact, narrowing rounds to nearest even (base/half.hpp), 16-bit to
/// the other 16-bit type goes through fp32. Views of the same shape, any strides, no overlap.
/// @throws Error internal where shapes differ
void convert(const TensorView& from, const TensorView& to);

}  // namespace rotunda
