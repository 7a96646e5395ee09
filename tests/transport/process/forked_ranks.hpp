// Ranks as forked processes. Only before this process has started threads or CUDA.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "transport/rendezvous/rendezvous.hpp"

namespace rotunda::testing {

/// How a rank's process ended: what its body returned, or the error that it threw.
struct Ending {
  std::string text;
  int status = 0;  ///< exit status, or 128 + the signal
  double seconds = 0;
};

/// Runs body(rendezvous) in a process a rank and waits for all.
[[nodiscard]] std::vector<Ending> fork_ranks(int ranks, const std::string& address, std::chrono::milliseconds timeout,
                                             const std::function<std::string(Rendezvous&)>& body);

/// An address that nobody uses.
[[nodiscard]] std::string unix_address();
[[nodiscard]] std::string tcp_address();
/// Whether this machine reaches itself at 127.0.0.1: not so in a sandbox without any network interface.
[[nodiscard]] bool has_loopback();

}  // namespace rotunda::testing
