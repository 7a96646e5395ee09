// Child processes.
#pragma once

#include <string>
#include <vector>

namespace rotunda::cli {

struct ProcessResult {
  int status = 0;  ///< exit status, or 128 + the signal that ended it
  std::string output, errors;
};

/// Runs a program with its arguments (the first is its path) and waits for it, its standard input empty.
/// @throws Error unsupported where it can't be started
[[nodiscard]] ProcessResult run_process(const std::vector<std::string>& command);

}  // namespace rotunda::cli
