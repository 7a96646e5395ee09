// The project's own text files, for tests that read the tree.
#pragma once

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace rotunda::architecture {

inline std::filesystem::path source_dir() {
  return ROTUNDA_SOURCE_DIR;
}

/// Path below the source folder, with forward slashes.
inline std::string path_in_tree(const std::filesystem::path& path) {
  return path.lexically_relative(source_dir()).generic_string();
}

/// A binary, or data that nobody wrote by hand.
inline bool is_data(const std::filesystem::path& path) {
  static const std::vector<std::string> extensions = {".safetensors", ".png", ".svg", ".json"};
  return std::find(extensions.begin(), extensions.end(), path.extension().string()) != extensions.end();
}

/// Files below `folder` (empty: the whole project) that people write, in order of path.
inline std::vector<std::filesystem::path> files_below(const std::string& folder = "") {
  static const std::vector<std::string> roots = {"src",   "include", "tests", "cmake",  "examples",
                                                 "bench", "docs",    "tools", "python", ".ci"};
  std::vector<std::filesystem::path> files;
  const auto add = [&](const std::filesystem::path& path) {
    const bool made = path.extension() == ".pyc";
    if (std::filesystem::is_regular_file(path) && !is_data(path) && !made) files.push_back(path);
  };
  for (const std::string& root : folder.empty() ? roots : std::vector{folder}) {
    if (!std::filesystem::exists(source_dir() / root)) continue;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(source_dir() / root)) add(entry.path());
  }
  if (folder.empty())
    for (const auto& entry : std::filesystem::directory_iterator(source_dir())) {
      if (entry.path().filename() != ".git") add(entry.path());  // a file, with a path in it, in a worktree
    }
  std::sort(files.begin(), files.end());
  return files;
}

inline bool is_cpp(const std::filesystem::path& path) {
  return path.extension() == ".cpp" || path.extension() == ".hpp";
}

inline std::vector<std::string> lines_of(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  return lines;
}

/// "src/plan/cost.cpp:12", counting from 1.
inline std::string place(const std::filesystem::path& path, std::size_t index) {
  return path_in_tree(path) + ":" + std::to_string(index + 1);
}

}  // namespace rotunda::architecture
