// What goes before the bytes of an exchange from one rank to another, so that sides which disagree find out before any
// memory is written.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/fnv.hpp"
#include "rotunda/tensor.hpp"
#include "transport/process/records.hpp"

namespace rotunda::callback {

/// Of a fixed size, since the receiver doesn't know what the other side says.
inline constexpr std::size_t kLabelBytes = 1024;

struct Label {
  int id = 0;
  std::vector<TensorView> views;  ///< shapes and dtypes; only the first few where they are many
  std::uint64_t messages = 0;     ///< how many there are
  std::uint64_t hash = 0;         ///< of all their shapes and dtypes
};

[[nodiscard]] inline std::string text_of(const TensorView& view) {
  std::string bytes;
  process::put(bytes, view.dtype);
  process::put(bytes, view.shape);
  return bytes;
}

[[nodiscard]] inline std::uint64_t hash_of(const std::vector<TensorView>& views) {
  std::string bytes;
  for (const TensorView& view : views) bytes += text_of(view);
  return fnv1a(bytes);
}

[[nodiscard]] inline std::string write_label(int id, const std::vector<TensorView>& views) {
  std::string bytes;
  process::put(bytes, id);
  process::put(bytes, static_cast<std::uint64_t>(views.size()));
  process::put(bytes, hash_of(views));
  for (const TensorView& view : views) {
    const std::string text = text_of(view);
    if (bytes.size() + text.size() > kLabelBytes) break;
    bytes += text;
  }
  bytes.resize(kLabelBytes, '\0');
  return bytes;
}

[[nodiscard]] inline Label read_label(std::string_view bytes) {
  Label label;
  label.id = process::get<int>(bytes);
  label.messages = process::get<std::uint64_t>(bytes);
  label.hash = process::get<std::uint64_t>(bytes);
  const std::size_t each = sizeof(DType) + sizeof(TensorView::shape);
  label.views.resize(std::min<std::size_t>(label.messages, bytes.size() / each));
  for (TensorView& view : label.views) {
    view.dtype = process::get<DType>(bytes);
    view.shape = process::get<decltype(view.shape)>(bytes);
  }
  return label;
}

}  // namespace rotunda::callback
