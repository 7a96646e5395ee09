// What goes to the terminal: results and progress.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "cli/options.hpp"

namespace rotunda::cli {

/// Writes to standard error; what can't be told (it is closed or full) stops nothing.
void tell(const std::string& text) noexcept;

/// Results, to standard output; nothing with --quiet.
void print(const Options& options, const std::string& text);
/// The same whatever the options.
void print(const std::string& text);
/// Once all is printed. Who reads a pipe may close it when he has enough, as `head` does: then the rest is dropped, and
/// that is no error. @throws Error bad_input where standard output could not be written for another reason
void check_printed();

/// What a message may show of a user's text: control characters as escapes, such as \n and \x1b.
[[nodiscard]] std::string legible(std::string_view text);

/// A warning, to standard error; none where ROTUNDA_LOG is error.
void warn(const std::string& text);

/// A line of progress on standard error while it lives: on a terminal only, and not with --quiet. Thread-safe.
class Progress {
 public:
  Progress(const Options& options, std::string what);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// Part done, 0 to 1.
  void update(double part);
  [[nodiscard]] std::function<void(double)> callback() {
    return [this](double part) { update(part); };
  }

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace rotunda::cli
