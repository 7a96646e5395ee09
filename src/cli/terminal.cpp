#include "cli/terminal.hpp"

#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <utility>

#include "base/fail.hpp"

namespace rotunda::cli {
namespace {

int print_error = 0;  // errno of the first text that could not be printed

}  // namespace

void print(const Options& options, const std::string& text) {
  if (!options.quiet) print(text);
}

void print(const std::string& text) {
  const bool printed = std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0;
  if (!printed && print_error == 0) print_error = errno;
}

void check_printed() {
  if (print_error == 0 || print_error == EPIPE) return;
  fail(ErrorKind::bad_input, "cannot write standard output: {}", std::strerror(print_error));
}

std::string legible(std::string_view text) {
  std::string result;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto byte = [&](std::size_t at) { return at < text.size() ? static_cast<unsigned char>(text[at]) : 0U; };
    const bool wide = byte(i) == 0xc2 && byte(i + 1) >= 0x80 && byte(i + 1) < 0xa0;  // U+0080 to U+009F
    if (text[i] == '\n') {
      result += "\\n";
    } else if (byte(i) < 0x20 || byte(i) == 0x7f || wide) {
      result += fmt::format("\\x{:02x}", byte(i));
      if (wide) result += fmt::format("\\x{:02x}", byte(++i));
    } else {
      result += text[i];
    }
  }
  return result;
}

void tell(const std::string& text) noexcept {
  (void)std::fputs(text.c_str(), stderr);
}

void warn(const std::string& text) {
  const char* level = std::getenv("ROTUNDA_LOG");
  if (level == nullptr || std::string(level) != "error") tell(fmt::format("rotunda: warning: {}\n", legible(text)));
}

struct Progress::State {
  std::mutex mutex;
  std::string what;
  bool shown = false;
  std::chrono::steady_clock::time_point last{};
};

Progress::Progress(const Options& options, std::string what) {
  if (options.quiet || ::isatty(STDERR_FILENO) == 0) return;
  state_ = std::make_unique<State>();
  state_->what = std::move(what);
}

Progress::~Progress() {
  if (state_ && state_->shown) tell("\r\x1b[K");
}

void Progress::update(double part) {
  if (!state_) return;
  const std::scoped_lock lock(state_->mutex);
  const auto now = std::chrono::steady_clock::now();
  if (state_->shown && now - state_->last < std::chrono::milliseconds(100)) return;
  state_->last = now;
  state_->shown = true;
  tell(fmt::format("\r\x1b[K{} {:.0f} %", state_->what, 100 * part));
  std::fflush(stderr);
}

}  // namespace rotunda::cli
