// Chrome traces, for ui.perfetto.dev.
#pragma once

#include <string>
#include <vector>

#include "cli/session.hpp"

namespace rotunda::cli {

/// JSON with a process a rank and two lanes in it, compute and communication; times in microseconds. Events by rank.
[[nodiscard]] std::string trace_text(const std::vector<std::vector<TraceEvent>>& ranks);
/// Writes what ranks did to a file, atomically. @throws Error bad_input
void write_trace(const std::string& path, const std::vector<RankReport>& reports);

}  // namespace rotunda::cli
