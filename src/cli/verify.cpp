#include "base/fail.hpp"
#include "cli/commands.hpp"
#include "cli/record.hpp"
#include "cli/setup.hpp"
#include "cli/terminal.hpp"
#include "cli/trace.hpp"
#include "cli/verification.hpp"

namespace rotunda::cli {

int verify(const Options& options) {
  const Inputs inputs = options.in.empty() ? random_inputs(required_problem(options), options.seed)
                                           : read_inputs(options.in, problem_of(options));
  const Verification result = verify_inputs(options, inputs);
  const Plan& plan = *result.reports.front().plan;
  warn_of_idle_flags(options, inputs.problem, &plan);
  print(options,
        fmt::format("{}\n{} on {}, against float64\n\n{}\n{}\n", inputs.problem_text, plan.summary(),
                    counted(plan.ranks, "rank"), grades_text(result.grades), result.passed() ? "passed" : "FAILED"));
  if (options.is_first() && !options.trace.empty()) write_trace(options.trace, result.reports);
  if (options.is_first() && !options.json.empty()) {
    Record record = record_of("verify", inputs.problem_text, options, result.reports);
    add_grades(record, result.grades);
    append_json(options.json, {to_json(record)});
  }
  return result.passed() ? 0 : 1;
}

}  // namespace rotunda::cli
