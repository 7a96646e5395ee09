#include <algorithm>
#include <memory>

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

/// The CP = 1 session on as many threads as all ranks together have.
std::unique_ptr<Session> alone(const SessionSetup& ours, const std::string& kernel, const Inputs& inputs) {
  SessionSetup setup = ours;
  setup.ranks = 1;
  setup.tracing = false;
  setup.options = PlanOptions{};
  setup.options.kernel = kernel;
  setup.options.device = ours.options.device;
  setup.options.threads = std::min(cores(), ours.options.threads * ours.ranks);
  return std::make_unique<Session>(setup, inputs.tensors.views);
}

/// CP = 1 sessions that --baseline asks for, by name.
struct Ideals {
  std::vector<std::pair<std::string, std::unique_ptr<Session>>> sessions;
};

Ideals make_ideals(const Options& options, const SessionSetup& setup, const Inputs& inputs, const Session& ours) {
  Ideals ideals;
  for (const std::string& name : options.baselines) {
    if (name == "ideal") ideals.sessions.emplace_back(name, alone(setup, "", inputs));
    if (name == "ideal_same_kernel") ideals.sessions.emplace_back(name, alone(setup, ours.plan().kernel, inputs));
  }
  return ideals;
}

Ratios over(const Times& theirs, const Times& ours) {
  const auto ratio = [](double a, double b) { return b > 0 ? a / b : 0.0; };
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
  if (record.times.backward > 0) record.bwd_tflops = 2.5 * flops / record.times.backward / 1e12;
}

/// One traced run beside the timed ones, which carry no tracing.
void trace_once(const Options& options, SessionSetup setup, const Inputs& inputs) {
  setup.tracing = true;
  Session session(setup, inputs.tensors.views);
  session.forward();
  if (inputs.problem.grad) session.backward();
  write_trace(options.trace, session.reports());
}

}  // namespace

int bench(const Options& options) {
  for (const std::string& name : options.baselines) check_baseline(name);
  const Inputs inputs = options.in.empty() ? random_inputs(required_problem(options), options.seed)
                                           : read_inputs(options.in, problem_of(options));
  const Problem& problem = inputs.problem;
  const Check check = check_once(options, inputs);
  SessionSetup setup = session_setup(options, problem);
  setup.tracing = false;
  Session session(setup, inputs.tensors.views);
  print(options, fmt::format("{}\n{} on {} ranks of {} threads\n\n", inputs.problem_text, session.plan().summary(),
                             setup.ranks, session.plan().threads));
  if (!check.passed) {
    print(options, grades_text(check.grades) + "\nFAILED: not timed\n");
    return 1;
  }
  const Ideals ideals = make_ideals(options, setup, inputs, session);
  std::vector<Session*> sessions{&session};
  for (const auto& [name, ideal] : ideals.sessions) sessions.push_back(ideal.get());
  std::vector<Times> times;
  {
    Progress progress(options, "timing");
    times = time_by_turns(sessions, problem.grad, options.repeat, progress.callback());
  }

  Record record = record_of(name_of(problem, setup.ranks), inputs.problem_text, options, session.reports());
  record.times = times[0];
  record.err_ratio = err_ratios(check.grades);
  record.verified = check.scaled;
  add_rates(record, problem);
  for (std::size_t i = 0; i < ideals.sessions.size(); ++i) {
    record.baselines[ideals.sessions[i].first] = over(times[i + 1], times[0]);
  }
  for (const std::string& name : options.baselines) {
    if (!is_peer(name)) continue;
    const PeerResult peer = run_peer(name, options.python, inputs.problem_text, options.repeat,
                                     std::min(cores(), session.plan().threads * setup.ranks));
    record.baselines[name] = over(peer.times, record.times);
    for (const auto& [what, version] : peer.versions) record.versions[what] = version;
  }
  print(options, result_text(record, check));
  if (!options.trace.empty()) trace_once(options, setup, inputs);
  if (!options.json.empty()) append_json(options.json, {to_json(record)});
  return 0;
}

}  // namespace rotunda::cli
