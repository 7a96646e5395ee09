#include "kernel/cpu/tile_work.hpp"
#include "kernel/row_state.hpp"
#include "kernel/targets.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernel/cpu/forward.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "kernel/cpu/micro_kernel-inl.h"
#include "kernel/cpu/tiles-inl.h"
#include "kernel/cpu/wide_product-inl.h"

HWY_BEFORE_NAMESPACE();
namespace rotunda::cpu::HWY_NAMESPACE {

constexpr float kNone = -std::numeric_limits<float>::infinity();
constexpr float kGreatest = 0x1p+126F;
constexpr double kLeastScale = 0x1p-120;  // no score times less is over 256
constexpr double kMostRest = 80;          // e^80 is finite, and more than any number of keys

/// Online softmax over the key tiles of one query tile. Scores are kept transposed, [key][lane]: a lane is a query
/// row, so maxima and sums over keys need no horizontal step. State of a lane: maximum m of the raw scores, sum l, Oᵀ
/// column.
class ForwardTile {
 public:
  ForwardTile(const ForwardArgs& args, const TileSizes& sizes, const QueryTile& tile, const HeadUnit& unit,
              const ForwardScratch& scratch)
      : args_(args), sizes_(sizes), tile_(tile), unit_(unit), s_(scratch), scale_(std::fabs(args.scale)) {
    rows_ = static_cast<int>(tile.rows.size());
    panels_ = (rows_ + kPanel - 1) / kPanel;
    acc_rows_ = (sizes.d_v + 3) / 4 * 4;
    negate_ = args.scale < 0;
    factor_ = static_cast<float>(HWY_MAX(scale_ * 1.4426950408889634, 0x1p-126));
  }

  void run() {
    mark_covered();
    for (int head = 0; head < unit_.q_count; ++head) {
      for (int panel = 0; panel < panels_; ++panel) load_panel(head, panel);
    }
    for (const Slice* slice : tile_.slices) {
      const Interval keys = visible_keys(*slice, tile_.rows);
      for (std::int64_t begin = keys.begin; begin < keys.end;) {
        const std::int64_t end = HWY_MIN(keys.end, begin + sizes_.keys - key_count_);
        add_keys(*slice, {begin, end});
        if (key_count_ == sizes_.keys) attend();
        begin = end;
      }
    }
    if (key_count_ > 0) attend();
    for (int head = 0; head < unit_.q_count; ++head) {
      for (int panel = 0; panel < panels_; ++panel) store_panel(head, panel);
      if (args_.max_logit != nullptr) raise_max_logit(head);
    }
  }

 private:
  [[nodiscard]] int lane0(int head, int panel) const { return (head * panels_ + panel) * kPanel; }
  [[nodiscard]] float* queries(int lane) const { return s_.queries + static_cast<std::int64_t>(lane) * sizes_.ld_k; }
  [[nodiscard]] double* wide_queries(int lane) const {
    return s_.wide.queries + static_cast<std::int64_t>(lane) * sizes_.ld_k;
  }
  [[nodiscard]] float* acc(int lane) const { return s_.acc + static_cast<std::int64_t>(lane) * sizes_.ld_v; }
  [[nodiscard]] RowPlace place(int head, int row) const {
    return {tile_.batch, tile_.rows.begin + row, unit_.q_begin + head};
  }
  [[nodiscard]] int rows_of(int panel) const { return HWY_MIN(kPanel, rows_ - panel * kPanel); }

  void mark_covered() {
    for (int row = 0; row < panels_ * kPanel; ++row) s_.covered[row] = 0;
    for (const Slice* slice : tile_.slices) {
      const Interval rows = intersect(tile_.rows, {slice->q_begin, slice->q_begin + slice->q_len});
      for (std::int64_t row = rows.begin; row < rows.end; ++row) s_.covered[row - tile_.rows.begin] = 1;
    }
  }

  /// Qᵀ of the covered rows, and their state: empty, or what a former call left as one pseudo key of weight l.
  void load_panel(int head, int panel) {
    const int lane = lane0(head, panel);
    fill(s_.rows, static_cast<std::int64_t>(kPanel) * sizes_.ld_k, 0);
    bool finite = true;
    for (int r = 0; r < rows_of(panel); ++r) {
      const int row = panel * kPanel + r;
      if (s_.covered[row] == 0) continue;
      float* const to = s_.rows + static_cast<std::int64_t>(r) * sizes_.ld_k;
      finite = read_row(args_.q, place(head, row), to) && finite;
      if (negate_) {
        for (int i = 0; i < sizes_.d; ++i) to[i] = -to[i];
      }
    }
    finite_queries_ = finite_queries_ && finite;
    transpose({s_.rows, sizes_.ld_k}, kPanel, sizes_.d, queries(lane), kPanel);
    if (sizes_.wide) widen_floats(queries(lane), static_cast<std::int64_t>(kPanel) * sizes_.d, wide_queries(lane));
    fill(s_.row_max + lane, kPanel, kNone);
    fill(s_.row_sum + lane, kPanel, 0);
    fill(s_.seen_max + lane, kPanel, kNone);
    if (args_.init) {
      fill(acc(lane), static_cast<std::int64_t>(kPanel) * acc_rows_, 0);
    } else {
      resume_panel(head, panel);
    }
  }

  void resume_panel(int head, int panel) {
    const int lane = lane0(head, panel);
    fill(s_.rows, static_cast<std::int64_t>(kPanel) * sizes_.ld_v, 0);
    for (int r = 0; r < rows_of(panel); ++r) {
      const int row = panel * kPanel + r;
      const RowPlace at = place(head, row);
      if (s_.covered[row] == 0) continue;
      const double lse = load_lse(args_, at.batch, at.row, at.head);
      if (lse == kNone) continue;
      // The score that stands for lse is rounded (0 where it would overflow), and the weight makes up for it. Where a
      // huge lse has no bits left for the weight, it must still be a number.
      const float m = scale_ < kLeastScale ? 0 : static_cast<float>(lse / scale_);
      const double rest = lse - static_cast<double>(m) * scale_;
      const auto weight = static_cast<float>(std::exp(HWY_MAX(-kMostRest, HWY_MIN(kMostRest, rest))));
      s_.row_max[lane + r] = m;
      s_.row_sum[lane + r] = weight;
      float* const to = s_.rows + static_cast<std::int64_t>(r) * sizes_.ld_v;
      read_row(args_.acc, at, to);
      for (int i = 0; i < sizes_.d_v; ++i) to[i] *= weight;
    }
    transpose({s_.rows, sizes_.ld_v}, kPanel, sizes_.d_v, acc(lane), kPanel);
  }

  void add_keys(const Slice& slice, Interval keys) {
    mark_lanes(slice, keys, tile_.rows, s_.marks.first + key_count_, s_.marks.last + key_count_);
    for (std::int64_t key = keys.begin; key < keys.end; ++key, ++key_count_) {
      const RowPlace at{tile_.batch, key, unit_.kv};
      const std::int64_t place_in_tile = static_cast<std::int64_t>(key_count_) * sizes_.ld_k;
      const bool good_key = read_row(args_.k, at, s_.keys + place_in_tile);
      if (sizes_.wide) widen_floats(s_.keys + place_in_tile, sizes_.d, s_.wide.keys + place_in_tile);
      const bool good_value = read_row(args_.v, at, s_.values + static_cast<std::int64_t>(key_count_) * sizes_.ld_v);
      finite_keys_ = finite_keys_ && good_key;
      finite_values_ = finite_values_ && good_value;
    }
  }

  void attend() {
    for (int panel = 0; panel < panels_; ++panel) {
      const PanelKeys keys = panel_keys(s_.marks.first, s_.marks.last, key_count_, panel * kPanel);
      if (keys.from >= keys.to) continue;
      for (int head = 0; head < unit_.q_count; ++head) attend_panel(head, panel, keys);
    }
    key_count_ = 0;
    finite_keys_ = finite_values_ = true;
  }

  void attend_panel(int head, int panel, PanelKeys keys) {
    const int lane = lane0(head, panel);
    const std::int64_t first = static_cast<std::int64_t>(keys.from) * sizes_.ld_k;
    if (sizes_.wide) {
      multiply_wide(keys.to - keys.from, sizes_.d, {s_.wide.keys + first, sizes_.ld_k}, wide_queries(lane),
                    {s_.scores, kPanel});
    } else {
      multiply<Major::row>(keys.to - keys.from, sizes_.d, {s_.keys + first, sizes_.ld_k}, {queries(lane), kPanel},
                           {s_.scores, kPanel, Start::zero});
    }
    HWY_ALIGN float rescale[kPanel];
    softmax_panel(lane, panel, keys, rescale);
    const Target out{acc(lane), kPanel, Start::scaled, rescale};
    if (keys.full || finite_values_) {
      const float* const v = s_.values + static_cast<std::int64_t>(keys.from) * sizes_.ld_v;
      multiply<Major::depth>(sizes_.d_v, keys.to - keys.from, {v, sizes_.ld_v}, {s_.scores, kPanel}, out);
    } else {
      add_marked_values(panel, keys, out);
    }
  }

  /// Oᵀ = rescale·Oᵀ + Vᵀ·Pᵀ where a row of V is not finite and some lanes must not see it: 0 · NaN would reach them.
  /// Rounds as the micro-kernel does.
  void add_marked_values(int panel, PanelKeys keys, const Target& out) {
    const Floats f;
    for (int lane = 0; lane < kPanel; lane += kLanes) {
      for (int i = 0; i < sizes_.d_v; ++i) {
        Vec sum = hn::Zero(f);
        for (int key = keys.from; key < keys.to; ++key) {
          const float value = s_.values[static_cast<std::int64_t>(key) * sizes_.ld_v + i];
          const Vec p = load_floats(s_.scores + (key - keys.from) * kPanel + lane);
          const auto sees = lanes_between(panel * kPanel + lane, s_.marks.first[key], s_.marks.last[key]);
          sum = hn::IfThenElse(sees, hn::MulAdd(hn::Set(f, value), p, sum), sum);
        }
        finish_sum(sum, out, i * out.ld, lane);
      }
    }
  }

  /// Scores to P = exp(scale·(score - m)) in place, updating m and l; rescale = exp(scale·(m before - m)). The
  /// difference is taken before it is scaled, so it is exact near the maximum however large scores are.
  void softmax_panel(int lane, int panel, PanelKeys keys, float* rescale) {
    for (int half = 0; half < 2; ++half) {
      softmax_vector(lane + half * kLanes, panel * kPanel + half * kLanes, keys, half * kLanes);
      hn::StoreU(rescale_, Floats(), rescale + half * kLanes);
    }
  }

  void softmax_vector(int lane, int row, PanelKeys keys, int column) {
    const Floats f;
    const Vec none = hn::Set(f, kNone), factor = hn::Set(f, factor_);
    const int count = keys.to - keys.from;
    float* const scores = s_.scores + column;
    if (!keys.full) hide_scores(scores, row, keys);
    Vec most = max_score(scores, count);
    hn::StoreU(hn::Max(most, load_floats(s_.seen_max + lane)), f, s_.seen_max + lane);

    const Vec before = load_floats(s_.row_max + lane);
    // Finite inputs whose scores overflow: a huge finite score stands for infinity.
    const Vec limit = hn::Set(f, kGreatest);
    if (finite_keys_ && finite_queries_ && !hn::AllFalse(f, hn::Gt(most, limit))) {
      cap_scores(scores, count);
      most = hn::Min(limit, most);
    }
    const Vec m = hn::Max(most, before);  // a NaN before stays
    const Vec origin = hn::IfThenElse(hn::Eq(m, none), hn::Zero(f), m);
    Vec sum = hn::Zero(f);
    for (int k = 0; k < count; ++k) {
      const Vec score = load_floats(scores + k * kPanel);
      const Vec p = exp2_scaled(hn::Sub(score, origin), factor);
      hn::StoreU(p, f, scores + k * kPanel);
      sum = hn::Add(sum, p);
    }
    rescale_ = exp2_scaled(hn::Sub(before, origin), factor);
    hn::StoreU(m, f, s_.row_max + lane);
    hn::StoreU(hn::MulAdd(load_floats(s_.row_sum + lane), rescale_, sum), f, s_.row_sum + lane);
  }

  static Vec max_score(const float* scores, int count) {
    Vec even = hn::Set(Floats(), kNone), odd = even;
    int k = 0;
    for (; k + 1 < count; k += 2) {
      even = hn::Max(even, load_floats(scores + k * kPanel));
      odd = hn::Max(odd, load_floats(scores + (k + 1) * kPanel));
    }
    if (k < count) even = hn::Max(even, load_floats(scores + k * kPanel));
    return hn::Max(even, odd);
  }

  void hide_scores(float* scores, int row, PanelKeys keys) const {
    const Floats f;
    for (int k = keys.from; k < keys.to; ++k, scores += kPanel) {
      const auto sees = lanes_between(row, s_.marks.first[k], s_.marks.last[k]);
      hn::StoreU(hn::IfThenElse(sees, load_floats(scores), hn::Set(f, kNone)), f, scores);
    }
  }

  void cap_scores(float* scores, int count) const {
    const Floats f;
    const Vec limit = hn::Set(f, kGreatest);
    for (int k = 0; k < count; ++k, scores += kPanel) hn::StoreU(hn::Min(limit, load_floats(scores)), f, scores);
  }

  void store_panel(int head, int panel) {
    const int lane = lane0(head, panel);
    transpose({acc(lane), kPanel}, acc_rows_, kPanel, s_.rows, sizes_.ld_v);
    for (int r = 0; r < rows_of(panel); ++r) {
      const int row = panel * kPanel + r;
      const RowPlace at = place(head, row);
      float* const values = s_.rows + static_cast<std::int64_t>(r) * sizes_.ld_v;
      if (s_.covered[row] == 0) {
        pass_row(at, values);
      } else {
        finish_row(at, values, s_.row_max[lane + r], s_.row_sum[lane + r]);
      }
    }
  }

  /// A row of no slice: empty, or what it was.
  void pass_row(RowPlace at, float* values) {
    const TensorView& to = args_.last ? args_.out : args_.acc;
    if (args_.init) {
      fill(values, sizes_.ld_v, 0);
      write_row(to, at, values, 1);
      store_lse(args_, at.batch, at.row, at.head, kNone);
    } else if (args_.last) {
      read_row(args_.acc, at, values);
      write_row(to, at, values, 1);
    }
  }

  void finish_row(RowPlace at, const float* values, float m, float sum) {
    // Nothing seen: sum and values are 0, and 0 / 1 is the answer.
    write_row(args_.last ? args_.out : args_.acc, at, values, m == kNone ? 1.0F : sum);
    const double lse = static_cast<double>(m) * scale_ + std::log(static_cast<double>(sum));
    const bool sees_nothing = m == kNone && !std::isnan(sum);  // scores may all be NaN
    store_lse(args_, at.batch, at.row, at.head, sees_nothing ? static_cast<double>(kNone) : lse);
  }

  void raise_max_logit(int head) {
    float most = kNone;
    for (int i = 0; i < rows_; ++i) most = greater(most, greatest_score(lane0(head, 0) + i));
    if (most == kNone) return;
    const auto logit = static_cast<float>(static_cast<double>(most) * scale_);
    const std::atomic_ref<float> place(args_.max_logit[unit_.q_begin + head]);
    float old = place.load();
    while (!(std::isnan(old) || old >= logit) && !place.compare_exchange_weak(old, logit)) {}
  }

  /// Of the row in a lane. Vectors pass over a NaN, which the sum has kept; so it has of an infinite score.
  [[nodiscard]] float greatest_score(int lane) const {
    const float seen = s_.seen_max[lane];
    return std::isnan(s_.row_sum[lane]) && !(std::isinf(seen) && seen > 0) ? s_.row_sum[lane] : seen;
  }

  const ForwardArgs& args_;
  const TileSizes& sizes_;
  const QueryTile& tile_;
  const HeadUnit& unit_;
  const ForwardScratch& s_;
  double scale_;  ///< its sign is in Qᵀ
  float factor_;  ///< scale·log2(e)
  bool negate_;
  int rows_, panels_, acc_rows_;
  int key_count_ = 0;  ///< keys in the tile so far
  bool finite_queries_ = true, finite_keys_ = true, finite_values_ = true;
  Vec rescale_ = hn::Zero(Floats());
};

void forward_tile(const ForwardArgs& args, const TileSizes& sizes, const QueryTile& tile, const HeadUnit& unit,
                  const ForwardScratch& scratch) {
  ForwardTile(args, sizes, tile, unit, scratch).run();
}

const char* instruction_set() {
  return hwy::TargetName(HWY_TARGET);
}
int lanes() {
  return kLanes;
}

}  // namespace rotunda::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace rotunda::cpu {

HWY_EXPORT(forward_tile);
HWY_EXPORT(instruction_set);
HWY_EXPORT(lanes);

void forward_tile(const ForwardArgs& args, const TileSizes& sizes, const QueryTile& tile, const HeadUnit& unit,
                  const ForwardScratch& scratch) {
  HWY_DYNAMIC_DISPATCH(forward_tile)(args, sizes, tile, unit, scratch);
}

std::string instruction_set() {
  return fmt::format("{}, {} lanes", HWY_DYNAMIC_DISPATCH(instruction_set)(), HWY_DYNAMIC_DISPATCH(lanes)());
}

}  // namespace rotunda::cpu
#endif
