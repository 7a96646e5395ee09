// Backward, row by row: with dP = dout·Vᵀ and dS = P∘(dP - delta),
// dq = scale·dS·K, dk = scale·dSᵀ·Q, dv = Pᵀ·dout.
#include <algorithm>
#include <cmath>
#include <limits>

#include "kernel/reference/rows.hpp"

namespace rotunda::reference {
namespace {

constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();

/// One (batch entry, KV head) of a call, with every query head that reads it.
template <class T>
class HeadBackward {
 public:
  HeadBackward(const BackwardArgs& args, std::int64_t b, int kv_head, Scratch scratch)
      : args_(args),
        b_(b),
        kv_head_(kv_head),
        q_(scratch.take(args.q.dim())),
        dq_(scratch.take(args.q.dim())),
        dout_(scratch.take(args.v.dim())),
        dk_(scratch.take(args.k.rows() * args.k.dim())),
        dv_(scratch.take(args.v.rows() * args.v.dim())) {}

  void run() {
    start(dk_, args_.dk);
    start(dv_, args_.dv);
    for (int head = 0; head < args_.q.heads(); ++head) {
      if (args_.heads.kv(head) != kv_head_) continue;
      for (std::int64_t row = 0; row < args_.q.rows(); ++row) add_row(row, head);
    }
    for (std::int64_t key = 0; key < args_.k.rows(); ++key) {
      store<float>(row_of(dk_, args_.dk, key), args_.dk.template at<float>(b_, key, kv_head_));
      store<float>(row_of(dv_, args_.dv, key), args_.dv.template at<float>(b_, key, kv_head_));
    }
  }

 private:
  [[nodiscard]] static std::span<double> row_of(std::span<double> sums, const TensorView& view, std::int64_t key) {
    const auto width = static_cast<std::size_t>(view.dim());
    return sums.subspan(static_cast<std::size_t>(key) * width, width);
  }

  /// Sums begin at 0, or at what the buffer holds.
  void start(std::span<double> sums, const TensorView& view) {
    std::fill(sums.begin(), sums.end(), 0.0);
    if (args_.init_dkv) return;
    for (std::int64_t key = 0; key < view.rows(); ++key) {
      load(view.at<float>(b_, key, kv_head_), row_of(sums, view, key));
    }
  }

  void add_row(std::int64_t row, int head) {
    float* dq = args_.dq.template at<float>(b_, row, head);
    std::fill(dq_.begin(), dq_.end(), 0.0);
    if (!args_.init_dq) load(dq, dq_);
    if (sees_something(args_.slices, b_, row)) add_visible_keys(row, head);
    store<float>(dq_, dq);
  }

  void add_visible_keys(std::int64_t row, int head) {
    const double lse = *args_.lse.template at<float>(b_, row, head);
    if (lse == kMinusInfinity) return;  // every logit is -inf: no weight anywhere
    const double delta = *args_.delta.template at<float>(b_, row, head);
    const T* q_row = args_.q.template at<T>(b_, row, head);
    const T* dout_row = args_.dout.template at<T>(b_, row, head);
    load(q_row, q_);
    load(dout_row, dout_);
    for_each_visible_key(args_.slices, b_, row, [&](std::int64_t key) {
      const T* k_row = args_.k.template at<T>(b_, key, kv_head_);
      const double exponent = args_.scale * dot(q_, k_row) - lse;
      const double p = std::exp(std::min(exponent, 0.0));  // P <= 1 whatever lse's rounding; a NaN stays
      const double dp = dot(dout_, args_.v.template at<T>(b_, key, kv_head_));
      const double ds = p * (dp - delta);
      add_scaled(dq_, args_.scale * ds, k_row);
      add_scaled(row_of(dk_, args_.dk, key), args_.scale * ds, q_row);
      add_scaled(row_of(dv_, args_.dv, key), p, dout_row);
    });
  }

  const BackwardArgs& args_;
  std::int64_t b_;
  int kv_head_;
  std::span<double> q_, dq_, dout_, dk_, dv_;
};

}  // namespace

void backward(const BackwardArgs& args, const KernelContext& context) {
  const std::int64_t per_worker = backward_scratch(args.k.rows(), args.q.dim(), args.v.dim());
  Scratch::check(context, per_worker);
  const std::int64_t kv_heads = args.k.heads();
  context.threads.parallel(args.k.batch() * kv_heads, [&](std::int64_t task, int worker) {
    dispatch_dtype(args.q.dtype, [&](auto element) {
      HeadBackward<decltype(element)> one(args, task / kv_heads, static_cast<int>(task % kv_heads),
                                          Scratch(context, worker, per_worker));
      one.run();
    });
  });
}

}  // namespace rotunda::reference
