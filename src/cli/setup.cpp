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

std::optional<Component> asked_transport(const PlanOptions& options) {
  for (const Component& each : components()) {
    if (each.kind == "transport" && each.name == options.transport) return each;
  }
  return std::nullopt;
}

void warn_of_idle_flags(const Options& options, const Problem& problem, const Plan* plan) {
  if (!options.is_first()) return;
  if ((options.plan.backward_schedule || options.plan.mixes) && !problem.grad) {
    warn("--backward-schedule changes nothing here: the problem has no grad=1, so there is no backward");
  }
  if (options.plan.kernel_scratch != 0 && plan != nullptr && !plan->takes_scratch) {
    warn(fmt::format("--kernel-scratch changes nothing here: {}",
                     plan->backward ? fmt::format("kernel {} takes none", plan->kernel) : "it is for backward"));
  }
}

SessionSetup session_setup(const Options& options, const Problem& problem) {
  if (options.plan.transport == "callback") {
    fail(ErrorKind::unsupported,
         "transport callback is for programs that carry the bytes between ranks themselves, which the command line "
         "does not; rotunda info lists the others");
  }
  SessionSetup setup;
  setup.problem = problem;
  setup.options = options.plan;
  setup.ranks = options.ranks_or_default();
  setup.timeout = options.timeout;
  setup.tracing = !options.trace.empty();
  setup.process = options.process;
  if (setup.options.threads == 0) setup.options.threads = std::max(1, cores() / setup.ranks);
  return setup;
}

}  // namespace rotunda::cli
