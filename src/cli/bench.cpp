#include <algorithm>
#include <memory>
#include <set>

#include "base/fail.hpp"
#include "cli/commands.hpp"
#include "cli/inputs.hpp"
#include "cli/peers.hpp"
#include "cli/record.hpp"
#include "cli/setup.hpp"
#include "cli/table.hpp"
#include "cli/terminal.hpp"
#include "cli/timing.hpp"
#include "cli/trace.hpp"
#include "cli/verification.hpp"

namespace rotunda::cli {
namespace {

/// Verifies the problem, or the same kind of problem scaled down to what the oracle can afford.
struct Check {
  std::vector<Grade> grades;
  std::string scaled;  ///< the problem checked, where it is not the one timed
  bool passed = true;
};

Check check_once(const Options& options, const Inputs& inputs) {
  const auto smaller = affordable(inputs.problem, kOracleFlops);
  Check check;
  if (!smaller) {
    check.scaled = "nothing: the oracle can't afford these slices, and they can't be scaled down";
    return check;
  }
  const bool whole = *smaller == inputs.problem;
  const Verification result =
      whole ? verify_inputs(options, inputs) : verify_inputs(options, random_inputs(*smaller, options.seed));
  check.grades = result.grades;
  check.passed = result.passed();
  if (!whole) check.scaled = to_text(*smaller);
  return check;
}

/// Graphs hold the work of ranks that are threads. @throws Error unsupported
void check_graph(const Options& options, Problem problem) {
  normalize(problem);
  if (options.process) fail(ErrorKind::unsupported, "--graph is for ranks that are threads: --transport local");
  if (device_kind(problem, options.plan) == Device::Kind::cuda) return;
  fail(ErrorKind::unsupported, "--graph is for CUDA devices, and the plan is for the cpu");
}

/// A baseline of our own, timed by turns with what it is compared to.
struct Rival {
  std::string name;
  std::vector<std::unique_ptr<Session>> sessions;
  bool alone = false;  ///< one rank on each device

  [[nodiscard]] Contestant contestant() const {
    Contestant result;
    for (const auto& session : sessions) result.push_back(session.get());
    return result;
  }
};

/// CP = 1: one rank on as many threads as all ranks together have, or one on each of the CUDA devices in use.
Rival alone(const std::string& name, const SessionSetup& ours, const Session& session, const Inputs& inputs) {
  std::set<int> devices;
  for (const RankReport& report : session.reports()) {
    if (ours.process && report.plan->rank != ours.process->rank) continue;  // the others time theirs
    if (report.plan->device.is_cuda()) devices.insert(report.plan->device.index);
  }
  SessionSetup setup = ours;
  setup.ranks = 1;
  setup.process = std::nullopt;
  setup.options = PlanOptions{};
  if (name == "ideal_same_kernel") setup.options.kernel = session.plan().kernel;
  setup.options.kernel_scratch = ours.options.kernel_scratch;
  setup.options.threads = std::min(cores(), ours.options.threads * ours.ranks);
  setup.options.device = devices.empty() ? Device::Kind::cpu : Device::Kind::cuda;
  Rival rival{name, {}, true};
  const auto add = [&] { rival.sessions.push_back(std::make_unique<Session>(setup, inputs.tensors.views)); };
  if (devices.empty()) add();
  for (const int device : devices) {
    setup.options.devices = {device};
    add();
  }
  return rival;
}

/// The same on other schedules.
Rival rescheduled(const std::string& name, const SchedulePair& schedules, SessionSetup setup, const Inputs& inputs) {
  setup.options.schedule = schedules.forward;
  setup.options.backward_schedule = schedules.backward;
  setup.options.mixes = false;
  Rival rival{name, {}, false};
  rival.sessions.push_back(std::make_unique<Session>(setup, inputs.tensors.views));
  return rival;
}

/// What --baseline asks for that is no peer.
std::vector<Rival> make_rivals(const Options& options, const SessionSetup& setup, const Session& ours,
                               const Inputs& inputs) {
  std::vector<Rival> rivals;
  for (const std::string& name : options.baselines) {
    if (is_peer(name)) continue;
    const auto schedules = schedules_of(name);
    rivals.push_back(schedules ? rescheduled(name, *schedules, setup, inputs) : alone(name, setup, ours, inputs));
  }
  return rivals;
}

/// Median over a few traced runs: the timed ones carry no tracing.
double traced_exposed_ms(SessionSetup setup, const Inputs& inputs) {
  constexpr int kRuns = 7;
  setup.tracing = true;
  setup.graph = false;
  Session session(setup, inputs.tensors.views);
  std::vector<double> samples;
  for (int i = 0; i <= kRuns; ++i) {
    if (inputs.problem.grad) {
      session.both();
    } else {
      session.forward();
    }
    if (i > 0) samples.push_back(exposed_ms(session.reports()));
  }
  return median(samples);
}

/// Their time divided by ours, and by `share`.
Ratios over(const Times& theirs, const Times& ours, int share = 1) {
  const auto ratio = [&](double a, double b) { return b > 0 ? a / b / share : 0.0; };
  return {ratio(theirs.forward, ours.forward), ratio(theirs.backward, ours.backward), ratio(theirs.both, ours.both)};
}

std::string name_of(const Problem& p, int ranks) {
  return fmt::format("{}_{}_s{}_h{}_{}_d{}_cp{}", to_string(p.layout), to_string(p.dtype), p.s_q, p.h_q, p.h_kv, p.d,
                     ranks);
}

std::string result_text(const Record& record, const Check& check) {
  std::string text = check.grades.empty() ? "" : grades_text(check.grades) + "\n";
  text += check.scaled.empty() ? "verified: the problem itself\n\n" : fmt::format("verified: {}\n\n", check.scaled);
  Table table({"", "forward", "backward", "both"}, 1);
  const auto cell = [](double value) { return value == 0 ? std::string("-") : figure(value); };
  table.add({"ms, median", cell(1e3 * record.times.forward), cell(1e3 * record.times.backward),
             cell(1e3 * record.times.both)});
  table.add({"GFLOP/s a rank", cell(1e3 * record.fwd_tflops), cell(1e3 * record.bwd_tflops), ""});
  for (const auto& [name, r] : record.baselines) {
    table.add({fmt::format("{}'s time / ours", name), cell(r.fwd), cell(r.bwd), cell(r.both)});
  }
  return text + table.text() +
         fmt::format("\n{} held beyond inputs and outputs, {} ms exposed\n", bytes_text(record.peak_bytes),
                     figure(record.exposed_ms));
}

void add_rates(Record& record, const Problem& problem) {
  const double flops = forward_flops(problem) / record.ranks;
  if (record.times.forward > 0) record.fwd_tflops = flops / record.times.forward / 1e12;
  if (record.times.backward > 0) record.bwd_tflops = kBackwardFlops * flops / record.times.backward / 1e12;
}

/// One traced run beside the timed ones, which carry no tracing.
void trace_once(const Options& options, SessionSetup setup, const Inputs& inputs) {
  setup.tracing = true;
  setup.graph = false;
  Session session(setup, inputs.tensors.views);
  session.forward();
  if (inputs.problem.grad) session.backward();
  if (options.is_first()) write_trace(options.trace, session.reports());
}

}  // namespace

int bench(const Options& options) {
  for (const std::string& name : options.baselines) check_baseline(name);
  const Inputs inputs = options.in.empty() ? random_inputs(required_problem(options), options.seed)
                                           : read_inputs(options.in, problem_of(options));
  const Problem& problem = inputs.problem;
  if (options.graph) check_graph(options, problem);
  const Check check = check_once(options, inputs);
  SessionSetup setup = session_setup(options, problem);
  setup.tracing = false;
  setup.graph = options.graph;
  Session session(setup, inputs.tensors.views);
  warn_of_idle_flags(options, problem, &session.plan());
  print(options, fmt::format("{}\n{} on {} of {}\n\n", inputs.problem_text, session.plan().summary(),
                             counted(setup.ranks, "rank"), counted(session.plan().threads, "thread")));
  if (session.from_first(check.passed ? "passed" : "failed") == "failed") {
    print(options, grades_text(check.grades) + "\nFAILED: not timed\n");
    return 1;
  }
  const std::vector<Rival> rivals = make_rivals(options, setup, session, inputs);
  std::vector<Contestant> contestants{{&session}};
  for (const Rival& rival : rivals) contestants.push_back(rival.contestant());
  std::vector<Times> times;
  {
    Progress progress(options, "timing");
    times = time_by_turns(contestants, problem.grad, options.repeat, progress.callback());
  }

  Record record = record_of(name_of(problem, setup.ranks), inputs.problem_text, options, session.reports());
  record.times = times[0];
  add_grades(record, check.grades);
  record.verified = check.scaled;
  record.graph = options.graph;
  add_rates(record, problem);
  record.exposed_ms = setup.ranks > 1 ? traced_exposed_ms(setup, inputs) : 0;
  for (std::size_t i = 0; i < rivals.size(); ++i) {
    const int share = rivals[i].alone ? std::max(1, record.gpus) : 1;  // the devices that an ideal is divided by
    record.baselines[rivals[i].name] = over(times[i + 1], times[0], share);
  }
  for (const std::string& name : options.baselines) {
    if (!is_peer(name) || !options.is_first()) continue;
    const PeerResult peer = run_peer(name, options.python,
                                     {.problem = inputs.problem_text,
                                      .repeat = options.repeat,
                                      .threads = std::min(cores(), session.plan().threads * setup.ranks),
                                      .ranks = setup.ranks});
    record.baselines[name] = over(peer.times, record.times);
    for (const auto& [what, version] : peer.versions) record.versions[what] = version;
  }
  print(options, result_text(record, check));
  if (!options.trace.empty()) trace_once(options, setup, inputs);
  if (options.is_first() && !options.json.empty()) append_json(options.json, {to_json(record)});
  return 0;
}

}  // namespace rotunda::cli
