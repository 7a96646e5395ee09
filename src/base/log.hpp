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

/// A line that can't be told (standard error is closed or full) stops nothing.
template <class... Args>
void log(LogLevel level, fmt::format_string<Args...> text, Args&&... args) {
  if (level > log_level()) return;
  const std::string line = fmt::format("rotunda: {}\n", fmt::format(text, std::forward<Args>(args)...));
  (void)std::fputs(line.c_str(), stderr);
}

}  // namespace rotunda
