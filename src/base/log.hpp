// Log lines on standard error, as ROTUNDA_LOG asks: error, warn (default), info, debug.
#pragma once

#include <fmt/format.h>

#include <cstdio>
#include <string>
#include <utility>

#include "base/environment.hpp"

namespace rotunda {

enum class LogLevel { error, warn, info, debug };

[[nodiscard]] inline LogLevel log_level() {
  const std::string name = environment("ROTUNDA_LOG").value_or("warn");
  if (name == "error") return LogLevel::error;
  if (name == "info") return LogLevel::info;
  if (name == "debug") return LogLevel::debug;
  return LogLevel::warn;
}

/// Writes to standard error as it is, closed and full devices included: what can't be told stops nothing.
inline void tell(const std::string& text) noexcept {
  (void)std::fputs(text.c_str(), stderr);
}

template <class... Args>
void log(LogLevel level, fmt::format_string<Args...> text, Args&&... args) {
  if (level > log_level()) return;
  tell(fmt::format("rotunda: {}\n", fmt::format(text, std::forward<Args>(args)...)));
}

}  // namespace rotunda
