#include "cli/build_info.hpp"

#include <fmt/format.h>
#include <sys/utsname.h>

#include <ctime>
#include <filesystem>

#include "rotunda/device.hpp"
#include "rotunda/info.hpp"

namespace rotunda::cli {
namespace fs = std::filesystem;

std::string version_text() {
  return "rotunda " + version();
}

std::map<std::string, std::string> versions() {
  std::map<std::string, std::string> found{{"rotunda", version()}, {"cpu", describe(Device{})}};
#if defined(__clang__)
  found["compiler"] = "clang " __clang_version__;
#else
  found["compiler"] = "g++ " __VERSION__;
#endif
  struct utsname system {};
  if (uname(&system) == 0) found["system"] = fmt::format("{} {}", system.sysname, system.machine);
  return found;
}

std::string build_options() {
  const std::string sanitizers = ROTUNDA_SANITIZERS;
  return fmt::format("{}{}", ROTUNDA_BUILD_TYPE, sanitizers.empty() ? "" : ", -fsanitize=" + sanitizers);
}

std::string today() {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  gmtime_r(&now, &utc);
  return fmt::format("{:04}-{:02}-{:02}", utc.tm_year + 1900, utc.tm_mon + 1, utc.tm_mday);
}

std::string find_resource(const std::string& relative) {
  std::error_code ignored;
  const fs::path source = fs::path(ROTUNDA_SOURCE_TREE) / relative;
  if (fs::exists(source, ignored)) return source.string();
  const fs::path program = fs::read_symlink("/proc/self/exe", ignored);
  const fs::path installed = program.parent_path().parent_path() / "share" / "rotunda" / relative;
  return fs::exists(installed, ignored) ? installed.string() : "";
}

}  // namespace rotunda::cli
