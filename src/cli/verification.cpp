#include "cli/verification.hpp"

#include <algorithm>

#include "base/fail.hpp"
#include "cli/record.hpp"
#include "cli/session.hpp"
#include "cli/setup.hpp"
#include "cli/table.hpp"
#include "cli/terminal.hpp"

namespace rotunda::cli {
namespace {

double oracle_flops(const Problem& problem) {
  return forward_flops(problem) * (problem.grad ? 1 + kBackwardFlops : 1);
}

/// What was not compared, or nothing.
std::string skipped_text(const std::vector<Grade>& grades) {
  std::string list;
  for (const Grade& each : grades) {
    if (each.skipped > 0)
      list += fmt::format("{}{} of {}", list.empty() ? "" : ", ", grouped(each.skipped), each.tensor);
  }
  return list.empty() ? "" : fmt::format("not compared, for the true value is NaN: {}\n", list);
}

}  // namespace

bool Verification::passed() const {
  return std::all_of(grades.begin(), grades.end(), [](const Grade& each) { return each.passed(); });
}

Verification verify_inputs(const Options& options, const Inputs& inputs) {
  const Problem& problem = inputs.problem;
  TensorStore outputs;
  outputs.allocate(problem, whole_rows(problem), output_kinds(problem));
  Verification result;
  {
    Session session(session_setup(options, problem), inputs.tensors.views);
    session.forward();
    if (problem.grad) session.backward();
    session.gather(outputs.views);
    result.reports = session.reports();
  }
  if (!options.is_first()) return result;  // rank 0 grades
  Progress progress(options, "oracle");
  const OracleResult want = oracle(problem, inputs.tensors.views, cores(), progress.callback());
  result.grades = grade(problem, want, outputs.views);
  return result;
}

std::string grades_text(const std::vector<Grade>& grades) {
  Table table({"tensor", "error", "naive error", "error/naive", "allowed", "misplaced", "verdict"}, 1);
  bool lucky = false;
  for (const Grade& each : grades) {
    const bool logits = each.bar < 2;
    const bool floored = !logits && each.ratio * each.naive_error < 0.999 * each.error;
    lucky = lucky || floored;
    table.add({each.tensor, fmt::format("{:.3e}", each.error), logits ? "-" : fmt::format("{:.3e}", each.naive_error),
               figure(each.ratio) + (floored ? "*" : ""), figure(each.bar), fmt::format("{}", each.misplaced),
               each.passed() ? "ok" : "FAILED"});
  }
  const char* note = "* naive is luckier than its roundings allow: measured against those (docs/accuracy.md)\n";
  return table.text() + (lucky ? note : "") + skipped_text(grades);
}

std::optional<Problem> affordable(const Problem& problem, double most_flops) {
  const double flops = oracle_flops(problem);
  if (flops <= most_flops) return problem;
  try {
    // Pairs go with the square of the lengths (or less, under a window): halve until it fits.
    for (double factor = 0.5; factor > 1e-9; factor /= 2) {
      Problem smaller = scaled(problem, factor);
      if (oracle_flops(smaller) <= most_flops) return smaller;
    }
  } catch (const Error&) {}
  return std::nullopt;
}

}  // namespace rotunda::cli
