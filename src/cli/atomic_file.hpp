// Files that appear whole or not at all.
#pragma once

#include <cstdio>
#include <string>
#include <string_view>

namespace rotunda::cli {

/// A file written under a temporary name in the same folder. commit() renames it into place; without commit it is
/// removed. A symbolic link stays one: what it leads to is replaced. Special files, and whatever is named through /dev
/// or /proc (such as /dev/stdout), are written in place. @throws Error bad_input when something fails
class AtomicFile {
 public:
  explicit AtomicFile(std::string path);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void write(const void* data, std::size_t bytes);
  void write(std::string_view text) { write(text.data(), text.size()); }
  void commit();

 private:
  [[noreturn]] void give_up(const char* what);

  std::string path_, target_, temporary_;
  std::FILE* file_ = nullptr;
};

/// Writes `text` as the whole of `path`, atomically.
void write_text(const std::string& path, std::string_view text);

/// Holds other programs that append to a file in the same folder off, while it lives.
class FolderLock {
 public:
  /// @throws Error bad_input where the folder can't be locked
  explicit FolderLock(const std::string& path);
  ~FolderLock();
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

 private:
  int folder_ = -1;
};

/// A path that will be written later: its folder is there and can be written to, and it is no folder itself.
/// @throws Error bad_input
void require_writable(const std::string& path);

/// Whether two paths lead to one file, whether or not it is there yet. @throws Error bad_input where links go in
/// circles
[[nodiscard]] bool name_same_file(const std::string& a, const std::string& b);

/// The whole of a text file. @throws Error bad_input
[[nodiscard]] std::string read_text(const std::string& path);

}  // namespace rotunda::cli
