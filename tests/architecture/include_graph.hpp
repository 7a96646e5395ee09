// Which folder may include which, as the root CMakeLists.txt says, and what the sources include.
#pragma once

#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "architecture/tree.hpp"

namespace rotunda::architecture {

/// Folder → every folder that it may include: itself, what its USES names, and what those use.
using Allowed = std::map<std::string, std::set<std::string>>;

/// Reads the rotunda_library(FOLDER USES …) lines of a CMakeLists.txt.
inline Allowed allowed_includes(const std::string& cmake) {
  static const std::regex call(R"(rotunda_library\((\w+)([^)]*)\))");
  Allowed allowed;
  for (std::sregex_iterator at(cmake.begin(), cmake.end(), call), end; at != end; ++at) {
    std::set<std::string>& folders = allowed[(*at)[1]];
    folders.insert((*at)[1]);
    bool uses = false;
    std::istringstream words((*at)[2]);
    for (std::string word; words >> word;) {
      if (word == "USES" || word == "LINK") {
        uses = word == "USES";
      } else if (uses) {
        folders.insert(word);
        folders.insert(allowed[word].begin(), allowed[word].end());
      }
    }
  }
  return allowed;
}

/// The path of an #include "…" line, or "".
inline std::string quoted_include(const std::string& line) {
  static const std::regex include(R"(^\s*#\s*include\s*"([^"]+)\")");
  std::smatch match;
  return std::regex_search(line, match, include) ? match[1].str() : "";
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
