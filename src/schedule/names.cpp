#include <array>

#include "base/fail.hpp"
#include "rotunda/schedule.hpp"

namespace rotunda {

const char* to_string(ScheduleKind kind) noexcept {
  switch (kind) {
    case ScheduleKind::p2p: return "p2p";
    case ScheduleKind::all_gather: return "all_gather";
    case ScheduleKind::a2a: return "a2a";
    case ScheduleKind::a2a_p2p: return "a2a_p2p";
  }
  return "?";
}

ScheduleKind parse_schedule_kind(std::string_view name) {
  for (const auto kind : {ScheduleKind::p2p, ScheduleKind::all_gather, ScheduleKind::a2a, ScheduleKind::a2a_p2p}) {
    if (name == to_string(kind)) return kind;
  }
  fail(ErrorKind::bad_input, "schedule '{}' is unknown; allowed: auto, p2p, all_gather, a2a, a2a_p2p", name);
}

const char* to_string(Binding binding) noexcept {
  constexpr std::array names = {"q",    "k",  "v",  "sink", "out",   "lse",      "max_logit",
                                "dout", "dq", "dk", "dv",   "dsink", "workspace"};
  return names[static_cast<std::size_t>(binding)];
}

}  // namespace rotunda
