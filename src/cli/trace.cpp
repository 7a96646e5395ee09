#include "cli/trace.hpp"

#include <nlohmann/json.hpp>

#include "cli/atomic_file.hpp"

namespace rotunda::cli {
namespace {

using nlohmann::ordered_json;

void name_lanes(ordered_json& events, int rank) {
  const auto name = [&](const char* what, int lane, const std::string& text) {
    events.push_back({{"name", what}, {"ph", "M"}, {"pid", rank}, {"tid", lane}, {"args", {{"name", text}}}});
  };
  name("process_name", 0, "rank " + std::to_string(rank));
  name("thread_name", 0, "compute");
  name("thread_name", 1, "communication");
}

}  // namespace

std::string trace_text(const std::vector<std::vector<TraceEvent>>& ranks) {
  ordered_json events = ordered_json::array();
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    name_lanes(events, static_cast<int>(rank));
    for (const TraceEvent& event : ranks[rank]) {
      const bool compute = event.lane == TraceEvent::Lane::compute;
      events.push_back({{"name", event.name},
                        {"cat", compute ? "compute" : "communication"},
                        {"ph", "X"},
                        {"pid", rank},
                        {"tid", compute ? 0 : 1},
                        {"ts", 1e6 * event.begin},
                        {"dur", 1e6 * (event.end - event.begin)}});
    }
  }
  return ordered_json{{"displayTimeUnit", "ms"}, {"traceEvents", events}}.dump() + "\n";
}

void write_trace(const std::string& path, const std::vector<RankReport>& reports) {
  std::vector<std::vector<TraceEvent>> events;
  for (const RankReport& report : reports) events.push_back(report.events);
  write_text(path, trace_text(events));
}

}  // namespace rotunda::cli
