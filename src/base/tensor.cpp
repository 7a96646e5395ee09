#include "rotunda/tensor.hpp"

#include <fmt/format.h>

namespace rotunda {

const char* to_string(DType dtype) noexcept {
  switch (dtype) {
    case DType::bf16: return "bf16";
    case DType::fp16: return "fp16";
    case DType::fp32: return "fp32";
  }
  return "?";
}

const char* to_string(Layout layout) noexcept {
  switch (layout) {
    case Layout::bshd: return "bshd";
    case Layout::sbhd: return "sbhd";
    case Layout::bhsd: return "bhsd";
    case Layout::thd: return "thd";
  }
  return "?";
}

std::size_t size_of(DType dtype) noexcept {
  return dtype == DType::fp32 ? 4 : 2;
}

namespace {

TensorView narrow(TensorView view, std::size_t axis, std::int64_t begin, std::int64_t count) {
  if (view.data != nullptr) {
    const std::int64_t elements = begin * view.stride[axis];
    view.data = static_cast<std::byte*>(view.data) + elements * static_cast<std::int64_t>(size_of(view.dtype));
  }
  view.shape[axis] = count;
  return view;
}

}  // namespace

TensorView TensorView::narrow_batch(std::int64_t begin, std::int64_t count) const {
  return narrow(*this, 0, begin, count);
}

TensorView TensorView::narrow_rows(std::int64_t begin, std::int64_t count) const {
  return narrow(*this, 1, begin, count);
}

TensorView TensorView::narrow_heads(std::int64_t begin, std::int64_t count) const {
  return narrow(*this, 2, begin, count);
}

TensorView make_view(void* data, DType dtype, Layout layout, std::int64_t b, std::int64_t s, std::int64_t h,
                     std::int64_t d) {
  TensorView view{data, dtype, {b, s, h, d}, {}};
  switch (layout) {
    case Layout::thd:
    case Layout::bshd: view.stride = {s * h * d, h * d, d, 1}; break;
    case Layout::sbhd: view.stride = {h * d, b * h * d, d, 1}; break;
    case Layout::bhsd: view.stride = {h * s * d, d, s * d, 1}; break;
  }
  return view;
}

TensorView make_row_view(float* data, std::int64_t b, std::int64_t s, std::int64_t h) {
  return TensorView{data, DType::fp32, {b, s, h, 1}, {h * s, 1, s, 1}};
}

std::string describe(const TensorView& view) {
  return fmt::format("{}[{}, {}, {}, {}]", to_string(view.dtype), view.shape[0], view.shape[1], view.shape[2],
                     view.shape[3]);
}

}  // namespace rotunda
