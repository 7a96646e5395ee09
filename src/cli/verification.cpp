#include "cli/verification.hpp"

#include <algorithm>
#include <cmath>

#include "base/fail.hpp"
#include "cli/record.hpp"
#include "cli/session.hpp"
#include "cli/setup.hpp"
#include "cli/table.hpp"
#include "cli/terminal.hpp"

namespace rotunda::cli {
namespace {

void scale(std::vector<std::int64_t>& values, double factor) {
  for (std::int64_t& value : values) value = std::llround(std::floor(static_cast<double>(value) * factor));
}

/// Lengths that must not vanish.
std::int64_t shrunk(std::int64_t length, double factor) {
  return length == 0 ? 0 : std::max<std::int64_t>(1, std::llround(static_cast<double>(length) * factor));
}

std::int64_t shrunk_edge(std::int64_t edge, double factor) {
  if (edge == kInfinity || edge == -kInfinity || edge == 0) return edge;
  return edge > 0 ? shrunk(edge, factor) : -shrunk(-edge, factor);
}

void scale_span(std::int64_t& begin, std::int64_t& len, double factor) {
  const auto end = static_cast<std::int64_t>(std::floor(static_cast<double>(begin + len) * factor));
  begin = static_cast<std::int64_t>(std::floor(static_cast<double>(begin) * factor));
  len = end - begin;
}

/// Visible lengths no longer than the sequences that hold them.
void clamp_used(std::vector<std::int64_t>& used, const std::vector<std::int64_t>& offsets) {
  for (std::size_t i = 0; i < used.size(); ++i) used[i] = std::min(used[i], offsets[i + 1] - offsets[i]);
}

Problem scaled(Problem problem, double factor) {
  if (problem.layout != Layout::thd || problem.slices) {
    problem.s_q = shrunk(problem.s_q, factor);
    problem.s_k = shrunk(problem.s_k, factor);
  }
  for (auto* lists :
       {&problem.lens_q, &problem.lens_k, &problem.cu_q, &problem.cu_k, &problem.used_q, &problem.used_k}) {
    scale(*lists, factor);
  }
  if (!problem.cu_q.empty()) {
    problem.s_q = problem.cu_q.back();
    problem.s_k = problem.cu_k.back();
    clamp_used(problem.used_q, problem.cu_q);
    clamp_used(problem.used_k, problem.cu_k);
  }
  problem.window = {shrunk_edge(problem.window.left, factor), shrunk_edge(problem.window.right, factor)};
  problem.prefix = shrunk(problem.prefix, factor);
  problem.chunk = shrunk(problem.chunk, factor);
  if (problem.slices) {
    for (Slice& slice : *problem.slices) {
      scale_span(slice.q_begin, slice.q_len, factor);
      scale_span(slice.k_begin, slice.k_len, factor);
      slice.q_pos = static_cast<std::int64_t>(std::floor(static_cast<double>(slice.q_pos) * factor));
      slice.k_pos = static_cast<std::int64_t>(std::floor(static_cast<double>(slice.k_pos) * factor));
      slice.left = shrunk_edge(slice.left, factor);
      slice.right = shrunk_edge(slice.right, factor);
    }
  }
  normalize(problem);
  return problem;
}

double oracle_flops(const Problem& problem) {
  return forward_flops(problem) * (problem.grad ? 3.5 : 1);
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
  return table.text() + (lucky ? note : "");
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
