// Which folder may include which, as the root CMakeLists.txt says, and what the sources include.
#pragma once

#include <map>
#include <set>
#include <sstream>
#include <string>

#include "architecture/tree.hpp"

namespace rotunda::architecture {

/// Folder → every folder that it may include: itself, what its USES names, and what those use.
using Allowed = std::map<std::string, std::set<std::string>>;

/// Reads the rotunda_library(FOLDER USES …) lines of a CMakeLists.txt.
inline Allowed allowed_includes(const std::string& cmake) {
  static const std::string call = "rotunda_library(";
  Allowed allowed;
  for (std::size_t at = cmake.find(call); at != std::string::npos; at = cmake.find(call, at + 1)) {
    const std::size_t begin = at + call.size();
    std::istringstream words(cmake.substr(begin, cmake.find(')', begin) - begin));
    std::string folder;
    words >> folder;
    std::set<std::string> folders = {folder};
    bool uses = false;
    for (std::string word; words >> word;) {
      if (word == "USES" || word == "LINK") {
        uses = word == "USES";
      } else if (uses) {
        folders.insert(word);
        folders.insert(allowed[word].begin(), allowed[word].end());
      }
    }
    allowed[folder] = folders;
  }
  return allowed;
}

/// The path of an #include "…" line, or "".
inline std::string quoted_include(const std::string& line) {
  std::string compact;
  for (const char c : line)
    if (c != ' ' && c != '\t') compact += c;
  static const std::string start = "#include\"";
  if (!compact.starts_with(start)) return "";
  return compact.substr(start.size(), compact.find('"', start.size()) - start.size());
}

/// Why a file of src/FOLDER may not include `path`, or "". Public headers are open to all; the command line sees them,
/// itself and base/fail.hpp alone.
inline std::string include_fault(const Allowed& allowed, const std::string& folder, const std::string& path) {
  const std::string target = path.substr(0, path.find('/'));
  if (target == path) return "\"" + path + "\" names no folder";
  if (target == "rotunda") return "";
  if (folder == "cli") {
    if (target == "cli" || path == "base/fail.hpp") return "";
    return "cli may include rotunda/, cli/ and base/fail.hpp only, not \"" + path + "\"";
  }
  const auto found = allowed.find(folder);
  if (found == allowed.end()) return folder + " has no rotunda_library line";
  if (found->second.contains(target)) return "";
  return folder + " may not include \"" + path + "\": " + target + " is not among its USES";
}

}  // namespace rotunda::architecture
