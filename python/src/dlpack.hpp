// Tensors of PyTorch as views, by DLPack: no header and no library of PyTorch is needed.
#pragma once

#include <nanobind/nanobind.h>

#include <cstddef>
#include <span>
#include <vector>

#include "rotunda/device.hpp"
#include "rotunda/tensor.hpp"

namespace rotunda::python {

/// Reads the tensors of a call: all lie on one device, in a layout's axis order. The views last as long as the tensors
/// and this.
/// @throws Error bad_input for dtypes that Rotunda doesn't know, other numbers of axes, and tensors elsewhere; `name`
/// is for the message
struct Importer {
  Layout layout;
  Device device;
  std::vector<nanobind::object> copies;  ///< of inputs, on the current stream

  /// bshd [b, s, h, d], …, thd [t, h, d] as [batch, row, head, dim]; None is empty.
  [[nodiscard]] TensorView tensor(nanobind::handle tensor, const char* name) const;
  /// The same, of an input as every kernel can read it: its last axis lies densely, and on a CUDA device all of its
  /// rows begin at multiples of 16 bytes. One that lies otherwise is copied.
  [[nodiscard]] TensorView input(nanobind::handle tensor, const char* name);
  /// Row statistics: [b, h, s], or [h, t] for thd.
  [[nodiscard]] TensorView rows(nanobind::handle tensor, const char* name) const;
  /// One number a head: [h].
  [[nodiscard]] TensorView heads(nanobind::handle tensor, const char* name) const;
  /// A dense tensor of one axis: only its memory counts.
  [[nodiscard]] std::span<std::byte> memory(nanobind::handle tensor, const char* name) const;
};

}  // namespace rotunda::python
