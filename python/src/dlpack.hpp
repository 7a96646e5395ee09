// Tensors of PyTorch as views, by DLPack: no header and no library of PyTorch is needed.
#pragma once

#include <nanobind/nanobind.h>

#include "rotunda/device.hpp"
#include "rotunda/tensor.hpp"

namespace rotunda::python {

/// Memory, shape and strides as they are; the tensor must outlive it.
struct Array {
  void* data = nullptr;
  DType dtype = DType::fp32;
  Device device;
  int axes = 0;
  std::array<std::int64_t, 4> shape{}, stride{};
};

/// @throws Error bad_input for dtypes and devices that Rotunda doesn't know; `name` is for the message
[[nodiscard]] Array import_array(nanobind::handle tensor, const char* name);

/// A tensor of a layout's axis order (bshd [b, s, h, d], …, thd [t, h, d]) as [batch, row, head, dim]; None is empty.
[[nodiscard]] TensorView import_tensor(nanobind::handle tensor, Layout layout, const char* name);
/// Row statistics: [b, h, s], or [h, t] for thd.
[[nodiscard]] TensorView import_rows(nanobind::handle tensor, const char* name);
/// One number a head: [h].
[[nodiscard]] TensorView import_heads(nanobind::handle tensor, const char* name);

}  // namespace rotunda::python
