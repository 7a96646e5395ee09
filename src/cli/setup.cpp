#include "cli/setup.hpp"

#include <sched.h>

#include <algorithm>
#include <thread>

#include "base/fail.hpp"
#include "cli/terminal.hpp"

namespace rotunda::cli {

int cores() {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  if (sched_getaffinity(0, sizeof allowed, &allowed) == 0) return std::max(1, CPU_COUNT(&allowed));
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

SessionSetup session_setup(const Options& options, const Problem& problem) {
  SessionSetup setup;
  setup.problem = problem;
  setup.options = options.plan;
  setup.ranks = options.ranks_or_default();
  setup.timeout = options.timeout;
  setup.tracing = !options.trace.empty();
  if (setup.options.threads == 0) setup.options.threads = std::max(1, cores() / setup.ranks);
  // Planned here first: what is not supported is told before any thread starts.
  const auto plan = make_plan(problem, setup.options, 0, setup.ranks);
  log(LogLevel::info, fmt::format("plan: {} on {} ranks for [{}]", plan->summary(), plan->ranks, to_text(problem)));
  for (const Refusal& refusal : plan->refusals) {
    log(LogLevel::debug, fmt::format("not {}: {}", refusal.what, refusal.reason));
  }
  return setup;
}

}  // namespace rotunda::cli
