// Plain values as bytes, one after the other, between processes of one host and one build.
#pragma once

#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>

#include "base/fail.hpp"

namespace rotunda::process {

template <class T>
void put(std::string& bytes, const T& value) {
  static_assert(std::is_trivially_copyable_v<T>);
  bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
}

/// Takes a value off the front.
template <class T>
[[nodiscard]] T get(std::string_view& bytes) {
  static_assert(std::is_trivially_copyable_v<T>);
  ROTUNDA_CHECK(bytes.size() >= sizeof(T));
  T value;
  std::memcpy(&value, bytes.data(), sizeof value);
  bytes.remove_prefix(sizeof value);
  return value;
}

}  // namespace rotunda::process
