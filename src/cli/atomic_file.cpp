#include "cli/atomic_file.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <utility>

#include "base/fail.hpp"

namespace rotunda::cli {
namespace {

namespace fs = std::filesystem;

/// The temporary file that is being written, for a signal that ends the program.
std::atomic<const char*> unfinished = nullptr;

void remove_unfinished(int number) {
  if (const char* const name = unfinished.load()) ::unlink(name);
  std::signal(number, SIG_DFL);
  std::raise(number);  // delivered when this returns
}

/// Signals that are ignored or handled stay so.
void guard_signals() {
  for (const int number : {SIGINT, SIGTERM, SIGHUP}) {
    struct sigaction action {};
    if (::sigaction(number, nullptr, &action) == 0 && action.sa_handler == SIG_DFL) {
      std::signal(number, remove_unfinished);
    }
  }
}

constexpr int kMostLinks = 40;  // as the system allows

/// Where a path leads through symbolic links, and whether that is a place that no file may be put over.
struct Target {
  fs::path path;
  bool in_place = false;
};

Target target_of(const std::string& path) {
  Target target{fs::path(path), false};
  for (int link = 0;; ++link) {
    const std::string at = fs::absolute(target.path).lexically_normal().string();
    target.in_place |= at.starts_with("/dev/") || at.starts_with("/proc/");
    std::error_code none;
    if (target.in_place || !fs::is_symlink(target.path, none)) break;
    if (link == kMostLinks) fail(ErrorKind::bad_input, "cannot write {}: {}", path, std::strerror(ELOOP));
    const fs::path next = fs::read_symlink(target.path, none);
    target.path = next.is_absolute() ? next : target.path.parent_path() / next;
  }
  struct stat info {};
  target.in_place |= ::stat(target.path.c_str(), &info) == 0 && !S_ISREG(info.st_mode);
  return target;
}

fs::path folder_of(const fs::path& file) {
  return file.has_parent_path() ? file.parent_path() : fs::path(".");
}

}  // namespace

AtomicFile::AtomicFile(std::string path) : path_(std::move(path)) {
  const Target target = target_of(path_);
  target_ = target.path.string();
  temporary_ = target.in_place ? target_ : fmt::format("{}.{}.tmp", target_, ::getpid());
  if (temporary_ != target_) {
    guard_signals();
    unfinished = temporary_.c_str();
  }
  file_ = std::fopen(temporary_.c_str(), "wb");
  if (file_ != nullptr) return;
  unfinished = nullptr;
  fail(ErrorKind::bad_input, "cannot write {}: {}", path_, std::strerror(errno));
}

AtomicFile::~AtomicFile() {
  if (file_ != nullptr) {
    std::fclose(file_);
    if (temporary_ != target_) std::remove(temporary_.c_str());
  }
  unfinished = nullptr;
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
  if (closed != 0 || (temporary_ != target_ && std::rename(temporary_.c_str(), target_.c_str()) != 0)) {
    const int why = errno;
    if (temporary_ != target_) std::remove(temporary_.c_str());
    errno = why;
    give_up("write");
  }
}

void write_text(const std::string& path, std::string_view text) {
  AtomicFile file(path);
  file.write(text);
  file.commit();
}

FolderLock::FolderLock(const std::string& path) {
  const fs::path folder = folder_of(target_of(path).path);
  folder_ = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder_ < 0 || ::flock(folder_, LOCK_EX) != 0) {
    fail(ErrorKind::bad_input, "cannot lock folder {} to append to {}: {}", folder.string(), path,
         std::strerror(errno));
  }
}

FolderLock::~FolderLock() {
  ::close(folder_);  // and with it goes the lock
}

void require_writable(const std::string& path) {
  const Target target = target_of(path);
  if (fs::is_directory(target.path)) {
    fail(ErrorKind::bad_input, "cannot write {}: it is a folder; name a file in it", path);
  }
  if (target.in_place) return;
  const fs::path folder = folder_of(target.path);
  if (!fs::is_directory(folder)) {
    fail(ErrorKind::bad_input, "cannot write {}: there is no folder {}; make it first", path, folder.string());
  }
  if (::access(folder.c_str(), W_OK | X_OK) != 0) {
    fail(ErrorKind::bad_input, "cannot write {}: folder {}: {}", path, folder.string(), std::strerror(errno));
  }
}

bool name_same_file(const std::string& a, const std::string& b) {
  std::error_code none;
  if (fs::equivalent(a, b, none)) return true;
  const auto place = [&](const std::string& path) {
    const fs::path file = fs::absolute(target_of(path).path).lexically_normal();
    const fs::path resolved = fs::weakly_canonical(file, none);
    return resolved.empty() ? file : resolved;
  };
  return place(a) == place(b);
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
