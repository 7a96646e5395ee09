// The floors of the bar: what roundings do to each row's part of the answers, to first order.
#include <cmath>

#include "base/half.hpp"
#include "kernel/oracle/group.hpp"
#include "kernel/oracle/products.hpp"
#include "kernel/oracle/rounding.hpp"

namespace rotunda::oracle_detail {
namespace {

double rounded(DType dtype, double x) {
  return dispatch_dtype(dtype, [&](auto element) {
    return static_cast<double>(static_cast<float>(decltype(element)(static_cast<float>(x))));
  });
}

}  // namespace

/// Roundings that every algorithm has which keeps out in the dtype, and sums, logits and lse in fp32. A logit off by
/// from_logit = 2·2^-24·|lse| (a dot product, a product, a difference) changes P_j by P_j·from_logit; out by P_j·(v_j -
/// out) of that; dq by dS_j·k_j of that.
template <class Arithmetic>
void Group<Arithmetic>::row_noise(Member& one, Range rows, const Runs& runs, BlockScratch<Real>& x,
                                  ErrorFloors& floors) {
  std::vector<double> p_variance(static_cast<std::size_t>(rows.size()), 0.0);
  std::vector<double> ds_variance(static_cast<std::size_t>(rows.size()), 0.0);
  for (const Run& run : runs.list) {
    const std::int64_t i = run.row - rows.begin;
    for (std::int64_t j = run.begin - runs.keys.begin; j < run.end - runs.keys.begin; ++j) {
      const auto p = static_cast<double>(x.p.row(i)[j]);
      p_variance[static_cast<std::size_t>(i)] += square(p * (1 - p));
      if (task_.problem.grad) ds_variance[static_cast<std::size_t>(i)] += square(x.ds.row(i)[j]);
    }
  }
  if (task_.problem.grad) {
    x.mean_k.resize(rows.size(), task_.problem.d);
    add_product(x.p, k_.rows, runs.keys, x.mean_k);
  }
  for (std::int64_t i = 0; i < rows.size(); ++i) {
    const std::int64_t row = rows.begin + i;
    const double lse = one.lse[static_cast<std::size_t>(row)];
    if (!std::isfinite(lse)) continue;
    const double from_logit = 2 * kFp32Rounding * std::max(1.0, std::abs(lse));
    const double p_deviation = std::sqrt(p_variance[static_cast<std::size_t>(i)]);
    floors.out = std::max(floors.out, from_logit * largest_v_ * p_deviation);
    if (!task_.problem.grad) continue;
    const double from_ds = from_logit * largest_k_ * std::sqrt(ds_variance[static_cast<std::size_t>(i)]);
    const double from_delta = gradient_noise(one, row, from_logit, x.out.row(i), x.mean_k.row(i));
    floors.dq = std::max(floors.dq, from_delta + task_.problem.scale * from_ds);
  }
}

/// Sets the row's noise for dk and dv; returns what it does to dq beside the logits. dP - delta cancels two fp32 sums,
/// and delta is made from the rounded out. mean_k = Σ P_j·k_j.
template <class Arithmetic>
double Group<Arithmetic>::gradient_noise(Member& one, std::int64_t row, double from_logit, const Real* out,
                                         const Real* mean_k) {
  const Problem& p = task_.problem;
  const Real* dout = one.dout.rows.row(row);
  double cancelled = 0, delta_error = 0, squares = 0;
  for (std::int64_t j = 0; j < p.d_v; ++j) {
    const auto exact = static_cast<double>(out[j]);
    cancelled += 2 * kFp32Rounding * std::abs(static_cast<double>(dout[j]) * exact);
    delta_error += static_cast<double>(dout[j]) * (rounded(p.dtype, exact) - exact);
    squares += square(static_cast<double>(dout[j]) * exact);
  }
  one.delta_spread[static_cast<std::size_t>(row)] = std::sqrt(squares);
  const double largest_q = largest(one.q.rows.row(row), p.d);
  one.noise[static_cast<std::size_t>(row)] = {p.scale * largest_q * cancelled, p.scale * largest_q * from_logit,
                                              from_logit * largest(dout, p.d_v), delta_error};
  return p.scale * (cancelled * largest_k_ + std::abs(delta_error) * largest(mean_k, p.d));
}

template void Group<Exact>::row_noise(Member&, Range, const Runs&, BlockScratch<double>&, ErrorFloors&);

}  // namespace rotunda::oracle_detail
