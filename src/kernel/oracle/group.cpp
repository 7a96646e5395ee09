#include "kernel/oracle/group.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernel/oracle/products.hpp"
#include "kernel/oracle/rounding.hpp"

namespace rotunda::oracle_detail {
namespace {

constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

/// log(exp(a) + exp(b))
double log_add(double a, double b) {
  const double top = std::max(a, b);
  if (std::isinf(top)) return top;
  return top + std::log(std::exp(a - top) + std::exp(b - top));
}

/// exp(logit - lse), the weight of a key; an lse of -inf (every logit overflowed in the naive algorithm) gives 0, as
/// does one of +inf (the sink's).
template <class Real>
Real weight(Real logit, double lse) {
  return std::exp(logit - (lse == kMinusInfinity ? Real(0) : static_cast<Real>(lse)));
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
    one.sick_sink = sink_is_sick(member);
    any_sick_ = any_sick_ || one.sick_sink;
  }
}

template <class Arithmetic>
bool Group<Arithmetic>::sink_is_sick(int member) const {
  if (task_.problem.sink != Sink::learnable) return false;
  return std::isnan(*task_.tensors.sink.template at<float>(0, 0, task_.q_head(member)));
}

template <class Arithmetic>
double Group<Arithmetic>::sink(int member) const {
  if (task_.problem.sink != Sink::learnable || sink_is_sick(member)) return 0;
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
  if constexpr (Arithmetic::kIsExact) row_noise(one, rows, runs, x, floors);
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
  const auto base = [&](std::size_t row) { return std::isfinite(one.top[row]) ? one.top[row] : 0; };
  each([&](std::size_t row, Real& s, Real&) { sum[row - first] += static_cast<double>(weight(s, base(row))); });
  for (std::size_t i = 0; i < sum.size(); ++i) {
    const std::size_t row = first + i;
    if (task_.real[row] != 0) one.lse[row] = log_add(base(row) + std::log(sum[i]), sink);
  }
  each([&](std::size_t row, Real& s, Real& p) { p = Arithmetic::round(weight(s, one.lse[row])); });
}

/// dP = dout·Vᵀ, delta = rowsum(P∘dP), dS = P∘(dP - delta), dq = scale·dS·K. Softmax's own delta, not rowsum(dout∘out),
/// which is the same but for rounding: a row with one key has dS = 0 even when rounded.
template <class Arithmetic>
void Group<Arithmetic>::row_gradients(Member& one, Range rows, const Runs& runs, BlockScratch<Real>& x) {
  const Problem& p = task_.problem;
  x.dp.resize(rows.size(), runs.keys.size());
  add_product(one.dout.rows, rows, v_.transposed, runs.keys.begin, x.dp);
  for (const Run& run : runs.list) {
    const std::int64_t i = run.row - rows.begin;
    double& delta = one.delta[static_cast<std::size_t>(run.row)];
    for (std::int64_t j = run.begin - runs.keys.begin; j < run.end - runs.keys.begin; ++j) {
      x.dp.row(i)[j] = Arithmetic::round(x.dp.row(i)[j]);
      delta += static_cast<double>(x.p.row(i)[j]) * static_cast<double>(x.dp.row(i)[j]);
    }
  }
  x.ds.resize(rows.size(), runs.keys.size());
  for (const Run& run : runs.list) {
    const std::int64_t i = run.row - rows.begin;
    const auto delta = static_cast<Real>(one.delta[static_cast<std::size_t>(run.row)]);
    for (std::int64_t j = run.begin - runs.keys.begin; j < run.end - runs.keys.begin; ++j) {
      x.ds.row(i)[j] = Arithmetic::round(x.p.row(i)[j] * (x.dp.row(i)[j] - delta));
    }
  }
  x.dq.resize(rows.size(), p.d);
  add_product(x.ds, k_.rows, runs.keys, x.dq);
  const auto scale = static_cast<Real>(p.scale);
  for (std::int64_t i = 0; i < rows.size(); ++i) {
    for (std::int64_t j = 0; j < p.d; ++j) x.dq.row(i)[j] = Arithmetic::round(x.dq.row(i)[j] * scale);
  }
}

template <class Arithmetic>
void Group<Arithmetic>::find_hurt(Member& one, const Runs& runs) {
  for (const Run& run : runs.list) {
    const auto row = static_cast<std::size_t>(run.row);
    bool hurt = one.q.sick[row] != 0 || one.sick_sink;
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
    const bool lse_is_hurt = one.hurt[row] != 0 || (one.sick_sink && task_.real[row] != 0);
    answers_.lse[static_cast<std::size_t>(at)] = lse_is_hurt ? kNaN : one.lse[row];
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
      if (std::isinf(sink(member)) && one.lse[row] == sink(member)) continue;  // out is 0, and so is delta
      const double share = std::exp(sink(member) - one.lse[row]);
      dsink -= share * one.delta[row];
      // out is rounded to the dtype in delta, and lse to fp32 in the share.
      const double from_out = rounding(p.dtype) * one.delta_spread[row];
      const double from_lse = 2 * kFp32Rounding * std::max(1.0, std::abs(one.lse[row])) * one.delta[row];
      variance += share * share * (from_out * from_out + from_lse * from_lse);
    }
    if (p.grad) answers_.dsink[head] += dsink;
    floors.dsink = std::max(floors.dsink, std::sqrt(variance));
    const auto any = [](std::span<const char> flags) {
      return std::find(flags.begin(), flags.end(), 1) != flags.end();
    };
    if (any(one.hurt)) answers_.max_logit[head] = kNaN;
    const bool dsink_is_hurt = any(one.hurt_gradients) || (one.sick_sink && any(task_.real));
    if (p.grad && dsink_is_hurt) answers_.dsink[head] = kNaN;
  }
}

template <class Arithmetic>
void Group<Arithmetic>::key_block(Range keys, BlockScratch<Real>& x, ErrorFloors& floors) {
  const Problem& p = task_.problem;
  const Runs runs = find_runs(task_.slices, {0, p.s_q}, keys);
  x.dk.resize(keys.size(), p.d);
  x.dv.resize(keys.size(), p.d_v);
  x.dk_errors.resize(keys.size(), p.d);
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
  for (std::int64_t i = 0; i < keys.size(); ++i) {
    const auto key = static_cast<std::size_t>(i);
    floors.dk = std::max(floors.dk, p.scale * largest(x.dk_errors.row(i), p.d) + std::sqrt(x.dk_variance[key]));
    floors.dv = std::max(floors.dv, std::sqrt(x.dv_variance[key]));
  }
  write_keys(keys, x, hurt);
}

/// dv += Pᵀ·dout and dk += dSᵀ·q over the rows that see these keys. Matrices here are [key, row].
template <class Arithmetic>
void Group<Arithmetic>::add_member_to_keys(Member& one, Range keys, const Runs& runs, BlockScratch<Real>& x) {
  const auto scale = static_cast<Real>(task_.problem.scale);
  for (auto* matrix : {&x.s, &x.p, &x.dp, &x.ds, &x.delta_errors}) matrix->resize(keys.size(), runs.rows.size());
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
        x.delta_errors.row(j)[i] = p * noise.delta;
        x.dk_variance[static_cast<std::size_t>(j)] += square(p * noise.dk_per_p) + square(ds * noise.dk_per_ds);
        x.dv_variance[static_cast<std::size_t>(j)] += square(p * noise.dv_per_p);
      }
    }
  }
  add_product(x.p, one.dout.rows, runs.rows, x.dv);
  add_product(x.ds, one.q.rows, runs.rows, x.dk);
  if constexpr (Arithmetic::kIsExact) add_product(x.delta_errors, one.q.rows, runs.rows, x.dk_errors);
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
