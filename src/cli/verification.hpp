// Checking results against the float64 oracle.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cli/inputs.hpp"
#include "cli/options.hpp"
#include "cli/session.hpp"
#include "rotunda/oracle.hpp"

namespace rotunda::cli {

/// Runs the inputs once on `ranks` of `options` and grades every output; of a job's processes only rank 0 grades.
struct Verification {
  std::vector<Grade> grades;
  std::vector<RankReport> reports;
  [[nodiscard]] bool passed() const;
};
[[nodiscard]] Verification verify_inputs(const Options& options, const Inputs& inputs);

/// One line a tensor: error, naive error, ratio, allowed, verdict; then how many elements were not compared.
[[nodiscard]] std::string grades_text(const std::vector<Grade>& grades);

/// The problem itself, where the oracle can afford it, or the same kind of problem with lengths, windows, offsets and
/// slices scaled down until it can. Nothing where scaling breaks the problem (slices that would overlap).
[[nodiscard]] std::optional<Problem> affordable(const Problem& problem, double most_flops);

/// What bench lets the oracle spend: FLOPs of forward, and backward where there is one. Some seconds on two cores.
inline constexpr double kOracleFlops = 6e9;

}  // namespace rotunda::cli
