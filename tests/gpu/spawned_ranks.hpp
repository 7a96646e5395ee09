// Ranks as processes of this test program: it starts itself again, because a process that has used CUDA can't fork.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "rotunda/transport.hpp"

namespace rotunda::testing {

/// What a spawned rank does: returns what the test is to see of it.
using RankBody = std::function<std::string(const ProcessOptions& options, const std::string& transport)>;

/// Makes a body known under a name, before main.
struct RegisterBody {
  RegisterBody(const std::string& name, RankBody body);
};

struct SpawnedEnding {
  std::string text;  ///< what the body returned, or the error that it threw
  int status = 0;    ///< exit status, or 128 + the signal
  double seconds = 0;
};

/// Runs a body in `ranks` processes on these devices, by turns. Those that take longer than `limit` are killed.
[[nodiscard]] std::vector<SpawnedEnding> spawn_ranks(const std::string& body, const std::string& transport, int ranks,
                                                     const std::vector<int>& devices,
                                                     std::chrono::milliseconds timeout = std::chrono::seconds(60),
                                                     std::chrono::seconds limit = std::chrono::seconds(240));

}  // namespace rotunda::testing
