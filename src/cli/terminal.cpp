#include "cli/terminal.hpp"

#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <utility>

#include <fmt/format.h>

namespace rotunda::cli {

void print(const Options& options, const std::string& text) {
  if (options.quiet) return;
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
}

void tell(const std::string& text) noexcept {
  (void)std::fputs(text.c_str(), stderr);
}

void warn(const std::string& text) {
  const char* level = std::getenv("ROTUNDA_LOG");
  if (level == nullptr || std::string(level) != "error") tell(fmt::format("rotunda: warning: {}\n", text));
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
