#include "cli/atomic_file.hpp"

#include <sys/stat.h>
#include <unistd.h>
#include <filesystem>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/fail.hpp"

namespace rotunda::cli {

AtomicFile::AtomicFile(std::string path) : path_(std::move(path)) {
  struct stat info {};
  const bool special = ::stat(path_.c_str(), &info) == 0 && !S_ISREG(info.st_mode);
  temporary_ = special ? path_ : fmt::format("{}.{}.tmp", path_, ::getpid());
  file_ = std::fopen(temporary_.c_str(), "wb");
  if (file_ == nullptr) fail(ErrorKind::bad_input, "cannot write {}: {}", path_, std::strerror(errno));
}

AtomicFile::~AtomicFile() {
  if (file_ == nullptr) return;
  std::fclose(file_);
  if (temporary_ != path_) std::remove(temporary_.c_str());
}

void AtomicFile::give_up(const char* what) {
  fail(ErrorKind::bad_input, "cannot {} {}: {}", what, path_, std::strerror(errno));
}

void AtomicFile::write(const void* data, std::size_t bytes) {
  if (bytes != 0 && std::fwrite(data, 1, bytes, file_) != bytes) give_up("write");
}

void AtomicFile::commit() {
  if (std::fflush(file_) != 0) give_up("write");
  const int closed = std::fclose(std::exchange(file_, nullptr));
  if (closed != 0 || (temporary_ != path_ && std::rename(temporary_.c_str(), path_.c_str()) != 0)) {
    const int why = errno;
    if (temporary_ != path_) std::remove(temporary_.c_str());
    errno = why;
    give_up("write");
  }
}

void write_text(const std::string& path, std::string_view text) {
  AtomicFile file(path);
  file.write(text);
  file.commit();
}

void require_writable(const std::string& path) {
  const std::filesystem::path file(path);
  const std::filesystem::path folder = file.has_parent_path() ? file.parent_path() : ".";
  if (std::filesystem::is_directory(file)) {
    fail(ErrorKind::bad_input, "cannot write {}: it is a folder; name a file in it", path);
  }
  if (!std::filesystem::is_directory(folder)) {
    fail(ErrorKind::bad_input, "cannot write {}: there is no folder {}; make it first", path, folder.string());
  }
}

std::string read_text(const std::string& path) {
  std::FILE* file = std::fopen(path.c_str(), "rb");
  if (file == nullptr) fail(ErrorKind::bad_input, "cannot read {}: {}", path, std::strerror(errno));
  std::string text;
  char chunk[65536];
  while (const std::size_t got = std::fread(chunk, 1, sizeof chunk, file)) text.append(chunk, got);
  const bool failed = std::ferror(file) != 0;
  const int why = errno;
  std::fclose(file);
  if (failed) fail(ErrorKind::bad_input, "cannot read {}: {}", path, std::strerror(why));
  return text;
}

}  // namespace rotunda::cli
