#include "kernel/oracle/group.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernel/oracle/rounding.hpp"

namespace rotunda::oracle_detail {
namespace {

constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kFp32Rounding = 0x1p-24;  // greatest relative error of one fp32 rounding

/// c[m, n] += a[m, k]·b[k, n] from column `b_column` of b on.
template <class Real>
void add_product(const Matrix<Real>& a, const Matrix<Real>& b, std::int64_t b_column, Matrix<Real>& c) {
  multiply_add(Product<Real>{a.row(0), a.stride(), b.row(0) + b_column, b.stride(), c.row(0), c.stride(), c.rows(),
                             c.columns(), a.columns()});
}

/// The same for rows [rows.begin, rows.end) of a.
template <class Real>
void add_product(const Matrix<Real>& a, Range rows, const Matrix<Real>& b, std::int64_t b_column, Matrix<Real>& c) {
  multiply_add(Product<Real>{a.row(rows.begin), a.stride(), b.row(0) + b_column, b.stride(), c.row(0), c.stride(),
                             rows.size(), c.columns(), a.columns()});
}

/// c += a·b for rows [rows.begin, rows.end) of b.
template <class Real>
void add_product(const Matrix<Real>& a, const Matrix<Real>& b, Range rows, Matrix<Real>& c) {
  multiply_add(Product<Real>{a.row(0), a.stride(), b.row(rows.begin), b.stride(), c.row(0), c.stride(), c.rows(),
                             c.columns(), rows.size()});
}

template <class Real>
double largest(const Real* values, std::int64_t count) {
  double most = 0;
  for (std::int64_t i = 0; i < count; ++i) most = std::max(most, std::abs(static_cast<double>(values[i])));
  return most;
}

double square(double x) {
  return x * x;
}

double rounded(DType dtype, double x) {
  return dispatch_dtype(dtype, [&](auto element) {
    return static_cast<double>(static_cast<float>(decltype(element)(static_cast<float>(x))));
  });
}

/// log(exp(a) + exp(b))
double log_add(double a, double b) {
  const double top = std::max(a, b);
  if (top == kMinusInfinity) return top;
  return top + std::log(std::exp(a - top) + std::exp(b - top));
}

/// exp(logit - lse), the weight of a key; an lse of -inf (every logit overflowed in the naive algorithm) gives 0.
template <class Real>
Real weight(Real logit, double lse) {
  return std::exp(logit - (std::isfinite(lse) ? static_cast<Real>(lse) : Real(0)));
}

}  // namespace

template <class Real>
void HeadMatrix<Real>::load(const TensorView& view, std::int64_t b, std::int64_t head) {
  rows.resize(view.rows(), view.dim());
  transposed.resize(view.dim(), view.rows());
  sick.assign(static_cast<std::size_t>(view.rows()), 0);
  any_sick = false;
  dispatch_dtype(view.dtype, [&](auto element) {
    for (std::int64_t row = 0; row < view.rows(); ++row) {
      const auto* from = view.at<decltype(element)>(b, row, head);
      for (std::int64_t i = 0; i < view.dim(); ++i) {
        auto value = static_cast<float>(from[i * view.stride[3]]);
        if (!std::isfinite(value)) {
          value = 0;
          sick[static_cast<std::size_t>(row)] = 1;
          any_sick = true;
        }
        rows.row(row)[i] = static_cast<Real>(value);
        transposed.row(i)[row] = static_cast<Real>(value);
      }
    }
  });
}

template <class Arithmetic>
Group<Arithmetic>::Group(const GroupTask& task, Answers& answers) : task_(task), answers_(answers) {
  const Problem& p = task_.problem;
  k_.load(task_.tensors.k, task_.b, task_.kv_head);
  v_.load(task_.tensors.v, task_.b, task_.kv_head);
  any_sick_ = k_.any_sick || v_.any_sick;
  for (std::int64_t key = 0; key < p.s_k; ++key) {
    largest_k_ = std::max(largest_k_, largest(k_.rows.row(key), p.d));
    largest_v_ = std::max(largest_v_, largest(v_.rows.row(key), p.d_v));
  }
  members_.resize(static_cast<std::size_t>(task_.heads()));
  const auto rows = static_cast<std::size_t>(p.s_q);
  for (int member = 0; member < task_.heads(); ++member) {
    Member& one = members_[static_cast<std::size_t>(member)];
    one.q.load(task_.tensors.q, task_.b, task_.q_head(member));
    if (p.grad) one.dout.load(task_.tensors.dout, task_.b, task_.q_head(member));
    any_sick_ = any_sick_ || one.q.any_sick || one.dout.any_sick;
    one.lse.assign(rows, kMinusInfinity);
    one.top.assign(rows, kMinusInfinity);
    one.delta.assign(rows, 0);
    one.delta_spread.assign(rows, 0);
    one.noise.assign(rows, {});
    one.hurt.assign(rows, 0);
    one.hurt_gradients.assign(rows, 0);
  }
}

template <class Arithmetic>
double Group<Arithmetic>::sink(int member) const {
  if (task_.problem.sink != Sink::learnable) return 0;
  return static_cast<double>(*task_.tensors.sink.template at<float>(0, 0, task_.q_head(member)));
}

template <class Arithmetic>
void Group<Arithmetic>::row_block(int member, Range rows, BlockScratch<Real>& x, ErrorFloors& floors) {
  const Problem& p = task_.problem;
  Member& one = members_[static_cast<std::size_t>(member)];
  const Runs runs = find_runs(task_.slices, rows, {0, p.s_k});
  x.s.resize(rows.size(), runs.keys.size());
  add_product(one.q.rows, rows, k_.transposed, runs.keys.begin, x.s);
  softmax(one, has_sink() ? sink(member) : kMinusInfinity, rows, runs, x);

  x.out.resize(rows.size(), p.d_v);
  add_product(x.p, v_.rows, runs.keys, x.out);
  for (std::int64_t i = 0; i < rows.size(); ++i) {
    for (std::int64_t j = 0; j < p.d_v; ++j) x.out.row(i)[j] = Arithmetic::round(x.out.row(i)[j]);
  }
  if (p.grad) row_gradients(one, rows, runs, x);
  if (Arithmetic::kIsExact) row_noise(one, rows, runs, x, floors);
  if (any_sick_) find_hurt(one, runs);
  write_rows(member, rows, x);
}

/// x.s becomes the scaled logits and x.p the weights of visible pairs, 0 elsewhere.
template <class Arithmetic>
void Group<Arithmetic>::softmax(Member& one, double sink, Range rows, const Runs& runs, BlockScratch<Real>& x) {
  const auto scale = static_cast<Real>(task_.problem.scale);
  const auto each = [&](auto&& body) {
    for (const Run& run : runs.list) {
      const std::int64_t i = run.row - rows.begin;
      for (std::int64_t j = run.begin; j < run.end; ++j) {
        body(static_cast<std::size_t>(run.row), x.s.row(i)[j - runs.keys.begin], x.p.row(i)[j - runs.keys.begin]);
      }
    }
  };
  x.p.resize(rows.size(), runs.keys.size());
  each([&](std::size_t row, Real& s, Real&) {
    s = Arithmetic::round(s * scale);
    one.top[row] = std::max(one.top[row], static_cast<double>(s));
  });
  std::vector<double> sum(static_cast<std::size_t>(rows.size()), 0.0);
  const auto first = static_cast<std::size_t>(rows.begin);
  each([&](std::size_t row, Real& s, Real&) { sum[row - first] += static_cast<double>(weight(s, one.top[row])); });
  for (std::size_t i = 0; i < sum.size(); ++i) {
    const std::size_t row = first + i;
    const double base = std::isfinite(one.top[row]) ? one.top[row] : 0;
    if (task_.real[row] != 0) one.lse[row] = log_add(base + std::log(sum[i]), sink);
  }
  each([&](std::size_t row, Real& s, Real& p) { p = Arithmetic::round(weight(s, one.lse[row])); });
}

/// dP = dout·Vᵀ, delta = rowsum(dout∘out), dS = P∘(dP - delta), dq = scale·dS·K.
template <class Arithmetic>
void Group<Arithmetic>::row_gradients(Member& one, Range rows, const Runs& runs, BlockScratch<Real>& x) {
  const Problem& p = task_.problem;
  x.dp.resize(rows.size(), runs.keys.size());
  add_product(one.dout.rows, rows, v_.transposed, runs.keys.begin, x.dp);
  for (std::int64_t i = 0; i < rows.size(); ++i) {
    const Real* dout = one.dout.rows.row(rows.begin + i);
    double sum = 0, squares = 0;
    for (std::int64_t j = 0; j < p.d_v; ++j) {
      const double term = static_cast<double>(dout[j]) * static_cast<double>(x.out.row(i)[j]);
      sum += term;
      squares += term * term;
    }
    one.delta[static_cast<std::size_t>(rows.begin + i)] = sum;
    one.delta_spread[static_cast<std::size_t>(rows.begin + i)] = std::sqrt(squares);
  }
  x.ds.resize(rows.size(), runs.keys.size());
  for (const Run& run : runs.list) {
    const std::int64_t i = run.row - rows.begin;
    const auto delta = static_cast<Real>(one.delta[static_cast<std::size_t>(run.row)]);
    for (std::int64_t j = run.begin - runs.keys.begin; j < run.end - runs.keys.begin; ++j) {
      x.ds.row(i)[j] = Arithmetic::round(x.p.row(i)[j] * (Arithmetic::round(x.dp.row(i)[j]) - delta));
    }
  }
  x.dq.resize(rows.size(), p.d);
  add_product(x.ds, k_.rows, runs.keys, x.dq);
  const auto scale = static_cast<Real>(p.scale);
  for (std::int64_t i = 0; i < rows.size(); ++i) {
    for (std::int64_t j = 0; j < p.d; ++j) x.dq.row(i)[j] = Arithmetic::round(x.dq.row(i)[j] * scale);
  }
}

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
  double cancelled = 0, from_out = 0;
  for (std::int64_t j = 0; j < p.d_v; ++j) {
    const auto exact = static_cast<double>(out[j]);
    cancelled += kFp32Rounding * std::abs(static_cast<double>(dout[j]) * exact);
    from_out += static_cast<double>(dout[j]) * (rounded(p.dtype, exact) - exact);
  }
  from_out = std::abs(from_out);
  const double largest_q = largest(one.q.rows.row(row), p.d);
  one.noise[static_cast<std::size_t>(row)] = {p.scale * largest_q * (cancelled + from_out),
                                              p.scale * largest_q * from_logit, from_logit * largest(dout, p.d_v)};
  return p.scale * (cancelled * largest_k_ + from_out * largest(mean_k, p.d));
}

template <class Arithmetic>
void Group<Arithmetic>::find_hurt(Member& one, const Runs& runs) {
  for (const Run& run : runs.list) {
    const auto row = static_cast<std::size_t>(run.row);
    bool hurt = one.q.sick[row] != 0;
    for (auto key = static_cast<std::size_t>(run.begin); key < static_cast<std::size_t>(run.end); ++key) {
      hurt = hurt || k_.sick[key] != 0 || v_.sick[key] != 0;
    }
    if (hurt) one.hurt[row] = 1;
    if (hurt || (task_.problem.grad && one.dout.sick[row] != 0)) one.hurt_gradients[row] = 1;
  }
}

template <class Arithmetic>
void Group<Arithmetic>::write_rows(int member, Range rows, const BlockScratch<Real>& x) {
  const Problem& p = task_.problem;
  const Member& one = members_[static_cast<std::size_t>(member)];
  const auto write = [](const Real* from, std::int64_t count, bool hurt, double* to) {
    for (std::int64_t i = 0; i < count; ++i) to[i] = hurt ? kNaN : static_cast<double>(from[i]);
  };
  for (std::int64_t i = 0; i < rows.size(); ++i) {
    const auto row = static_cast<std::size_t>(rows.begin + i);
    const std::int64_t at = (task_.b * p.s_q + rows.begin + i) * p.h_q + task_.q_head(member);
    answers_.lse[static_cast<std::size_t>(at)] = one.hurt[row] != 0 ? kNaN : one.lse[row];
    write(x.out.row(i), p.d_v, one.hurt[row] != 0, answers_.out.data() + at * p.d_v);
    if (p.grad) write(x.dq.row(i), p.d, one.hurt_gradients[row] != 0, answers_.dq.data() + at * p.d);
  }
}

template <class Arithmetic>
void Group<Arithmetic>::finish_heads(ErrorFloors& floors) {
  const Problem& p = task_.problem;
  for (int member = 0; member < task_.heads(); ++member) {
    const Member& one = members_[static_cast<std::size_t>(member)];
    const auto head = static_cast<std::size_t>(task_.q_head(member));
    double dsink = 0, variance = 0;
    for (std::size_t row = 0; row < one.lse.size(); ++row) {
      answers_.max_logit[head] = std::max(answers_.max_logit[head], one.top[row]);
      if (!has_sink() || task_.real[row] == 0) continue;
      const double share = std::exp(sink(member) - one.lse[row]);
      dsink -= share * one.delta[row];
      variance += share * share * one.delta_spread[row] * one.delta_spread[row];
    }
    if (p.grad) answers_.dsink[head] += dsink;
    floors.dsink = std::max(floors.dsink, std::sqrt(variance));
    const auto any = [](const std::vector<char>& flags) {
      return std::find(flags.begin(), flags.end(), 1) != flags.end();
    };
    if (any(one.hurt)) answers_.max_logit[head] = kNaN;
    if (p.grad && any(one.hurt_gradients)) answers_.dsink[head] = kNaN;
  }
}

template <class Arithmetic>
void Group<Arithmetic>::key_block(Range keys, BlockScratch<Real>& x, ErrorFloors& floors) {
  const Problem& p = task_.problem;
  const Runs runs = find_runs(task_.slices, {0, p.s_q}, keys);
  x.dk.resize(keys.size(), p.d);
  x.dv.resize(keys.size(), p.d_v);
  x.dk_variance.assign(static_cast<std::size_t>(keys.size()), 0);
  x.dv_variance.assign(static_cast<std::size_t>(keys.size()), 0);
  std::vector<char> hurt(static_cast<std::size_t>(keys.size()), 0);
  for (Member& one : members_) {
    add_member_to_keys(one, keys, runs, x);
    if (!any_sick_) continue;
    for (const Run& run : runs.list) {
      if (one.hurt_gradients[static_cast<std::size_t>(run.row)] == 0) continue;
      std::fill(hurt.begin() + (run.begin - keys.begin), hurt.begin() + (run.end - keys.begin), 1);
    }
  }
  for (const double variance : x.dk_variance) floors.dk = std::max(floors.dk, std::sqrt(variance));
  for (const double variance : x.dv_variance) floors.dv = std::max(floors.dv, std::sqrt(variance));
  write_keys(keys, x, hurt);
}

/// dv += Pᵀ·dout and dk += dSᵀ·q over the rows that see these keys. Matrices here are [key, row].
template <class Arithmetic>
void Group<Arithmetic>::add_member_to_keys(Member& one, Range keys, const Runs& runs, BlockScratch<Real>& x) {
  const auto scale = static_cast<Real>(task_.problem.scale);
  for (auto* matrix : {&x.s, &x.p, &x.dp, &x.ds}) matrix->resize(keys.size(), runs.rows.size());
  add_product(k_.rows, keys, one.q.transposed, runs.rows.begin, x.s);
  add_product(v_.rows, keys, one.dout.transposed, runs.rows.begin, x.dp);
  for (const Run& run : runs.list) {
    const std::int64_t i = run.row - runs.rows.begin;
    const auto row = static_cast<std::size_t>(run.row);
    const double lse = one.lse[row];
    const auto delta = static_cast<Real>(one.delta[row]);
    for (std::int64_t j = run.begin - keys.begin; j < run.end - keys.begin; ++j) {
      const Real p = Arithmetic::round(weight(Arithmetic::round(x.s.row(j)[i] * scale), lse));
      x.p.row(j)[i] = p;
      const Real ds = Arithmetic::round(p * (Arithmetic::round(x.dp.row(j)[i]) - delta));
      x.ds.row(j)[i] = ds;
      if constexpr (Arithmetic::kIsExact) {
        const Noise& noise = one.noise[row];
        x.dk_variance[static_cast<std::size_t>(j)] += square(p * noise.dk_per_p) + square(ds * noise.dk_per_ds);
        x.dv_variance[static_cast<std::size_t>(j)] += square(p * noise.dv_per_p);
      }
    }
  }
  add_product(x.p, one.dout.rows, runs.rows, x.dv);
  add_product(x.ds, one.q.rows, runs.rows, x.dk);
}

template <class Arithmetic>
void Group<Arithmetic>::write_keys(Range keys, const BlockScratch<Real>& x, std::span<const char> hurt) {
  const Problem& p = task_.problem;
  const auto scale = static_cast<Real>(p.scale);
  for (std::int64_t i = 0; i < keys.size(); ++i) {
    const std::int64_t at = (task_.b * p.s_k + keys.begin + i) * p.h_kv + task_.kv_head;
    const bool is_hurt = hurt[static_cast<std::size_t>(i)] != 0;
    double* dk = answers_.dk.data() + at * p.d;
    double* dv = answers_.dv.data() + at * p.d_v;
    for (std::int64_t j = 0; j < p.d; ++j) {
      dk[j] = is_hurt ? kNaN : static_cast<double>(Arithmetic::round(x.dk.row(i)[j] * scale));
    }
    for (std::int64_t j = 0; j < p.d_v; ++j) {
      dv[j] = is_hurt ? kNaN : static_cast<double>(Arithmetic::round(x.dv.row(i)[j]));
    }
  }
}

template class Group<Exact>;
template class Group<Naive<bf16_t>>;
template class Group<Naive<fp16_t>>;
template class Group<Naive<float>>;

}  // namespace rotunda::oracle_detail
