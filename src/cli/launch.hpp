// Transports whose ranks are processes: is this one of them, or does it start them?
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "cli/options.hpp"

namespace rotunda::cli {

/// Whether the command runs attention on ranks that are processes: as --transport asks, where this build and machine
/// have it (else the plan says why not).
[[nodiscard]] bool needs_processes(const Options& options);

/// Makes the options those of one rank of the job, where there is one. @throws Error bad_input where --ranks says
/// something else than the job
void join_job(Options& options, const std::optional<ProcessGroup>& job);

/// Starts --ranks processes of this program with the same arguments on this host, passes on what rank 0 prints, waits
/// for all, and returns the exit status: rank 0's, or that of the rank that failed first, whose error is printed. A
/// rank that was killed is named, with status 4; those that then don't end within the timeout are killed.
int start_processes(const std::vector<std::string>& arguments, const Options& options);

/// The same with any arguments; the first is the program's name. After a failure the others have `patience` to end.
int start_command(const std::vector<std::string>& command, int ranks, std::chrono::milliseconds patience);

}  // namespace rotunda::cli
