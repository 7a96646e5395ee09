// Tensor views: every layout is seen as [batch, row, head, dim] with strides.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

namespace rotunda {

enum class DType { bf16, fp16, fp32 };
enum class Layout { bshd, sbhd, bhsd, thd };

[[nodiscard]] const char* to_string(DType dtype) noexcept;
[[nodiscard]] const char* to_string(Layout layout) noexcept;
/// Bytes of one element.
[[nodiscard]] std::size_t size_of(DType dtype) noexcept;

/// A strided view of somebody else's memory, axes always [batch, row, head, dim], strides in elements.
/// Packed (thd) buffers have one batch entry; row vectors such as LSE have dim 1. Owns nothing; copying it is cheap.
struct TensorView {
  void* data = nullptr;
  DType dtype = DType::fp32;
  std::array<std::int64_t, 4> shape{};   ///< batch, rows, heads, dim
  std::array<std::int64_t, 4> stride{};  ///< in elements, same axes

  [[nodiscard]] std::int64_t batch() const { return shape[0]; }
  [[nodiscard]] std::int64_t rows() const { return shape[1]; }
  [[nodiscard]] std::int64_t heads() const { return shape[2]; }
  [[nodiscard]] std::int64_t dim() const { return shape[3]; }
  [[nodiscard]] std::int64_t elements() const { return shape[0] * shape[1] * shape[2] * shape[3]; }
  /// Of the elements: what lies between them is not counted.
  [[nodiscard]] std::int64_t bytes() const { return elements() * static_cast<std::int64_t>(size_of(dtype)); }
  [[nodiscard]] bool empty() const { return elements() == 0; }

  /// Address of element [b, row, head, 0]; T must match dtype.
  template <class T>
  [[nodiscard]] T* at(std::int64_t b, std::int64_t row, std::int64_t head) const {
    return static_cast<T*>(data) + b * stride[0] + row * stride[1] + head * stride[2];
  }
  /// The same memory narrowed to batch entries, rows or heads [begin, begin + count).
  [[nodiscard]] TensorView narrow_batch(std::int64_t begin, std::int64_t count) const;
  [[nodiscard]] TensorView narrow_rows(std::int64_t begin, std::int64_t count) const;
  [[nodiscard]] TensorView narrow_heads(std::int64_t begin, std::int64_t count) const;
};

/// View of dense memory in a layout: bshd [b, s, h, d], sbhd [s, b, h, d], bhsd [b, h, s, d], thd [s, h, d] (b = 1).
[[nodiscard]] TensorView make_view(void* data, DType dtype, Layout layout, std::int64_t b, std::int64_t s,
                                   std::int64_t h, std::int64_t d);
/// View of row statistics (LSE): dense memory [b, h, s], fp32.
[[nodiscard]] TensorView make_row_view(float* data, std::int64_t b, std::int64_t s, std::int64_t h);
/// "bf16[2, 64, 4, 128]" for messages.
[[nodiscard]] std::string describe(const TensorView& view);

}  // namespace rotunda
