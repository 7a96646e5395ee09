// What this build is.
#pragma once

#include <map>
#include <string>

namespace rotunda::cli {

/// "rotunda 0.1.0"
[[nodiscard]] std::string version_text();
/// Versions for records: of rotunda, the compiler and the system.
[[nodiscard]] std::map<std::string, std::string> versions();
/// "Release, -fsanitize=…" as configured.
[[nodiscard]] std::string build_options();
/// Today as 2026-11-30 (UTC).
[[nodiscard]] std::string today();
/// The first existing one of SOURCE/relative and PREFIX/share/rotunda/relative, where PREFIX is found from the running
/// program; empty where there is none.
[[nodiscard]] std::string find_resource(const std::string& relative);

}  // namespace rotunda::cli
