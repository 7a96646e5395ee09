// The oracle: exact attention in float64, and the error that counts as right. Whole tensors, no ranks, no slices of a
// schedule: it shares nothing with the pipeline but the problem.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "rotunda/attention.hpp"
#include "rotunda/problem.hpp"

namespace rotunda {

/// Answers as dense float64 in the order [batch, row, head, dim] (lse [batch, row, head]); gradients empty without
/// grad.
struct Answers {
  std::vector<double> out, lse, max_logit, dq, dk, dv, dsink;
};

/// What an algorithm loses that sums in fp32 and keeps out in the dtype and lse in fp32, by tensor: about one standard
/// deviation of the worst element, without the rounding of the result itself. The bar is never below it, since the
/// naive algorithm may happen to be exact, as in a row with one key.
struct ErrorFloors {
  double out = 0, dq = 0, dk = 0, dv = 0, dsink = 0;
};

/// Exact answers in float64, and those of the naive algorithm: every operation's result (S, P, O; dP, dS, dQ, dK, dV)
/// rounded to the problem's dtype, sums inside a product in fp32. tensors: q, k, v (dout, sink) are read.
struct OracleResult {
  Answers exact, naive;
  ErrorFloors floors;
};

/// `progress` (may be empty) is called with the part done, 0 to 1, now and then, from any thread. @throws Error
/// bad_input for a tensor that is not as the normalized problem says
[[nodiscard]] OracleResult oracle(const Problem& problem, const Tensors& whole, int threads,
                                  const std::function<void(double)>& progress = {});

/// How one tensor did. ratio = error / max(naive error, floor): at most 2 passes. lse and max_logit: ratio is error /
/// (1e-5·max(1, |answer|)) and at most 1 passes. misplaced counts infinities that differ and values that are not
/// finite where the answer is; skipped those that are not compared, for the answer is NaN.
struct Grade {
  std::string tensor;
  double error = 0, naive_error = 0, ratio = 0, bar = 2;
  std::int64_t misplaced = 0, skipped = 0;
  [[nodiscard]] bool passed() const { return misplaced == 0 && ratio <= bar; }
};

/// Grades whole tensors (out, lse, max_logit, dq, dk, dv, dsink; views without data are left out).
[[nodiscard]] std::vector<Grade> grade(const Problem& problem, const OracleResult& want, const Tensors& got);

}  // namespace rotunda
