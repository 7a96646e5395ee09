// Throwing errors with a formatted sentence, and counts as sentences have them.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "rotunda/error.hpp"

namespace rotunda {

template <class... Args>
[[noreturn]] void fail(ErrorKind kind, fmt::format_string<Args...> text, Args&&... args) {
  throw Error(kind, fmt::format(text, std::forward<Args>(args)...));
}

/// "1 rank", "4 ranks".
[[nodiscard]] inline std::string counted(std::int64_t count, std::string_view noun) {
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : "s");
}

/// A condition that only a fault of ours can break.
#define ROTUNDA_CHECK(condition)                                                                                    \
  do {                                                                                                              \
    if (!(condition)) ::rotunda::fail(::rotunda::ErrorKind::internal, "{}:{}: {}", __FILE__, __LINE__, #condition); \
  } while (false)

}  // namespace rotunda
