// Forward, row by row: logits of the visible keys, their maximum, one weighted sum of V.
#include <cmath>
#include <limits>
#include <vector>

#include "kernel/reference/rows.hpp"
#include "kernel/row_state.hpp"

namespace rotunda::reference {
namespace {

constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();

/// One (batch entry, query head) of a call.
template <class T>
class HeadForward {
 public:
  HeadForward(const ForwardArgs& args, std::int64_t b, int head, Scratch scratch)
      : args_(args),
        b_(b),
        head_(head),
        kv_head_(args.heads.kv(head)),
        q_(scratch.take(args.q.dim())),
        out_(scratch.take(args.v.dim())),
        logits_(scratch.take(args.k.rows())) {}

  /// The head's greatest logit.
  double run() {
    for (std::int64_t row = 0; row < args_.q.rows(); ++row) {
      if (sees_something(args_.slices, b_, row)) {
        add_visible_keys(row);
      } else if (args_.init || args_.last) {
        start_state(row);
        finish(row);
      }
    }
    return top_;
  }

 private:
  /// lse_ and out_ become the state so far.
  void start_state(std::int64_t row) {
    lse_ = kMinusInfinity;
    std::fill(out_.begin(), out_.end(), 0.0);
    if (args_.init) return;
    lse_ = load_lse(args_, b_, row, head_);
    load(args_.acc.template at<float>(b_, row, head_), out_);
  }

  /// With weights w = exp(logit - base), and exp(lse - base) for the state:
  /// out = (Σ w·v + w_state·acc) / Σ w,  lse = base + log Σ w.
  void add_visible_keys(std::int64_t row) {
    start_state(row);
    double top = kMinusInfinity;
    std::size_t count = 0;
    load(args_.q.template at<T>(b_, row, head_), q_);
    for_each_visible_key(args_.slices, b_, row, [&](std::int64_t key) {
      const double logit = args_.scale * dot(q_, args_.k.template at<T>(b_, key, kv_head_));
      logits_[count++] = logit;
      top = greater(top, logit);
    });
    top_ = greater(top_, top);

    const double greatest = std::max(top, lse_);
    const double base = greatest == kMinusInfinity ? 0 : greatest;
    double total = std::exp(lse_ - base);
    for (double& value : out_) value *= total;
    count = 0;
    for_each_visible_key(args_.slices, b_, row, [&](std::int64_t key) {
      const double weight = std::exp(logits_[count++] - base);
      total += weight;
      add_scaled(out_, weight, args_.v.template at<T>(b_, key, kv_head_));
    });
    lse_ = base + std::log(total);
    const double divisor = total == 0 ? 1 : total;  // every logit is -inf: as if nothing were visible
    for (double& value : out_) value /= divisor;
    finish(row);
  }

  void finish(std::int64_t row) {
    store_lse(args_, b_, row, head_, lse_);
    if (args_.last) {
      store<T>(out_, args_.out.template at<T>(b_, row, head_));
    } else {
      store<float>(out_, args_.acc.template at<float>(b_, row, head_));
    }
  }

  const ForwardArgs& args_;
  std::int64_t b_;
  int head_, kv_head_;
  std::span<double> q_, out_, logits_;
  double lse_ = kMinusInfinity;
  double top_ = kMinusInfinity;
};

}  // namespace

void forward(const ForwardArgs& args, const KernelContext& context) {
  const std::int64_t per_worker = forward_scratch(args.k.rows(), args.q.dim(), args.v.dim());
  Scratch::check(context, per_worker);
  const std::int64_t heads = args.q.heads();
  std::vector<double> tops(static_cast<std::size_t>(args.q.batch() * heads), kMinusInfinity);
  context.threads.parallel(args.q.batch() * heads, [&](std::int64_t task, int worker) {
    dispatch_dtype(args.q.dtype, [&](auto element) {
      HeadForward<decltype(element)> one(args, task / heads, static_cast<int>(task % heads),
                                         Scratch(context, worker, per_worker));
      tops[static_cast<std::size_t>(task)] = one.run();
    });
  });
  if (args.max_logit == nullptr) return;
  for (std::size_t task = 0; task < tops.size(); ++task) {
    float& top = args.max_logit[task % static_cast<std::size_t>(heads)];
    top = greater(top, static_cast<float>(tops[task]));
  }
}

}  // namespace rotunda::reference
