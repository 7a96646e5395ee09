// FNV-1a, 64 bits: the same on every machine. Fowler, Noll, Vo: http://www.isthe.com/chongo/tech/comp/fnv
#pragma once

#include <cstdint>
#include <string_view>

namespace rotunda {

[[nodiscard]] constexpr std::uint64_t fnv1a(std::string_view text) {
  std::uint64_t hash = 0xcbf29ce484222325U;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3U;
  return hash;
}

}  // namespace rotunda
