// Throwing errors with a formatted sentence.
#pragma once

#include <fmt/format.h>

#include <utility>

#include "rotunda/error.hpp"

namespace rotunda {

template <class... Args>
[[noreturn]] void fail(ErrorKind kind, fmt::format_string<Args...> text, Args&&... args) {
  throw Error(kind, fmt::format(text, std::forward<Args>(args)...));
}

/// A condition that only a fault of ours can break.
#define ROTUNDA_CHECK(condition)                                                                                    \
  do {                                                                                                              \
    if (!(condition)) ::rotunda::fail(::rotunda::ErrorKind::internal, "{}:{}: {}", __FILE__, __LINE__, #condition); \
  } while (false)

}  // namespace rotunda
