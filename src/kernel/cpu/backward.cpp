#include "kernel/cpu/tile_work.hpp"
#include "kernel/targets.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernel/cpu/backward.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <limits>
#include <thread>

#include "kernel/cpu/micro_kernel-inl.h"
#include "kernel/cpu/tiles-inl.h"
#include "kernel/cpu/wide_product-inl.h"

HWY_BEFORE_NAMESPACE();
namespace rotunda::cpu::HWY_NAMESPACE {

/// One chunk of keys against all query tiles that see it, one query head after the other. Five products a pair, with
/// scores kept transposed, [key][lane], as in forward:
///     Sᵀ = K·Qᵀ, dPᵀ = V·dOᵀ, dV += Pᵀ·dO, dK += dSᵀ·Q, dQ = dS·K
/// dK and dV stay in scratch until the chunk is done; dQ of a tile is added to the tensor in the order of chunks.
class BackwardChunk {
 public:
  BackwardChunk(const BackwardArgs& args, const TileSizes& sizes, const KeyChunk& chunk, const HeadUnit& unit,
                const BackwardShared& shared, const BackwardScratch& scratch)
      : args_(args),
        sizes_(sizes),
        chunk_(chunk),
        unit_(unit),
        shared_(shared),
        s_(scratch),
        scale_(args.scale),
        keys_(static_cast<int>(chunk.keys.size())) {}

  void run() {
    const bool any = unit_.q_count > 0 && !chunk_.visits.empty();
    if (!any && !args_.init_dkv) return;
    fill(s_.grad_keys, static_cast<std::int64_t>(keys_) * sizes_.ld_k, 0);
    fill(s_.grad_values, static_cast<std::int64_t>(keys_) * sizes_.ld_v, 0);
    if (any) {
      load_keys();
      for (const Visit& visit : chunk_.visits) {
        for (int head = unit_.q_begin; head < unit_.q_begin + unit_.q_count; ++head) meet(visit, head);
      }
    }
    for (int key = 0; key < keys_; ++key) store_key(key);
  }

 private:
  /// Rows of K and V that a slice covers; the others are never used.
  void load_keys() {
    for (int key = 0; key < keys_; ++key) s_.marks.bad_key[key] = kUnread;
    for (const Visit& visit : chunk_.visits) {
      for (const Slice* slice : visit.slices) {
        const Interval keys = intersect(chunk_.keys, {slice->k_begin, slice->k_begin + slice->k_len});
        for (std::int64_t key = keys.begin; key < keys.end; ++key) load_key(static_cast<int>(key - chunk_.keys.begin));
      }
    }
  }

  void load_key(int key) {
    if (s_.marks.bad_key[key] != kUnread) return;
    const RowPlace at{chunk_.batch, chunk_.keys.begin + key, unit_.kv};
    const std::int64_t place = static_cast<std::int64_t>(key) * sizes_.ld_k;
    const bool good_key = read_row(args_.k, at, s_.keys + place);
    if (sizes_.wide) widen_floats(s_.keys + place, sizes_.d, s_.wide.keys + place);
    const bool good_value = read_row(args_.v, at, s_.values + static_cast<std::int64_t>(key) * sizes_.ld_v);
    s_.marks.bad_key[key] = good_key ? 0 : 1;
    finite_keys_ = finite_keys_ && good_key && good_value;
  }

  void meet(const Visit& visit, int head) {
    const std::int64_t begin = visit.tile * sizes_.lanes;
    rows_ = {begin, HWY_MIN(begin + sizes_.lanes, args_.q.rows())};
    lanes_ = static_cast<int>((rows_.size() + kPanel - 1) / kPanel) * kPanel;
    load_queries(visit, head);
    fill(s_.grad_queries, static_cast<std::int64_t>(lanes_) * sizes_.ld_k, 0);
    for (const Slice* slice : visit.slices) attend(*slice);
    add_grad_queries(visit, head);
  }

  /// Q and dO in both orders, lse and delta. A row that no slice covers or that saw nothing (lse = -inf) is all zeros
  /// with an lse of +inf: its P and dS come out as 0.
  void load_queries(const Visit& visit, int head) {
    for (int lane = 0; lane < lanes_; ++lane) s_.alive[lane] = s_.bad_query[lane] = s_.bad_grad[lane] = 0;
    for (const Slice* slice : visit.slices) {
      const Interval rows = intersect(rows_, {slice->q_begin, slice->q_begin + slice->q_len});
      for (std::int64_t row = rows.begin; row < rows.end; ++row) s_.alive[row - rows_.begin] = 1;
    }
    finite_queries_ = finite_grads_ = true;
    for (int lane = 0; lane < lanes_; ++lane) load_query(lane, head);
    for (int lane = 0; lane < lanes_; lane += kPanel) {
      const std::int64_t q = static_cast<std::int64_t>(lane) * sizes_.ld_k;
      const std::int64_t g = static_cast<std::int64_t>(lane) * sizes_.ld_v;
      transpose({s_.queries + q, sizes_.ld_k}, kPanel, sizes_.d, s_.queries_t + q, kPanel);
      if (sizes_.wide) {
        widen_floats(s_.queries_t + q, static_cast<std::int64_t>(kPanel) * sizes_.d, s_.wide.queries + q);
      }
      transpose({s_.grads + g, sizes_.ld_v}, kPanel, sizes_.d_v, s_.grads_t + g, kPanel);
    }
  }

  void load_query(int lane, int head) {
    const RowPlace at{chunk_.batch, rows_.begin + lane, head};
    float* const query = s_.queries + static_cast<std::int64_t>(lane) * sizes_.ld_k;
    float* const grad = s_.grads + static_cast<std::int64_t>(lane) * sizes_.ld_v;
    constexpr float infinity = std::numeric_limits<float>::infinity();
    const float lse = s_.alive[lane] != 0 ? *args_.lse.at<float>(at.batch, at.row, at.head) : -infinity;
    if (lse == -infinity) {
      s_.alive[lane] = 0;
      fill(query, sizes_.ld_k, 0);
      fill(grad, sizes_.ld_v, 0);
      s_.lse_high[lane] = infinity;
      s_.lse_low[lane] = s_.delta[lane] = 0;
      if (sizes_.wide) s_.wide.lse[lane] = static_cast<double>(infinity);
      return;
    }
    const bool good_query = read_row(args_.q, at, query);
    const bool good_grad = read_row(args_.dout, at, grad);
    s_.bad_query[lane] = good_query ? 0 : 1;
    s_.bad_grad[lane] = good_grad ? 0 : 1;
    finite_queries_ = finite_queries_ && good_query;
    finite_grads_ = finite_grads_ && good_grad;
    const double exponent = static_cast<double>(lse) * 1.4426950408889634;
    if (sizes_.wide) s_.wide.lse[lane] = exponent;
    s_.lse_high[lane] = static_cast<float>(exponent);
    s_.lse_low[lane] = static_cast<float>(exponent - static_cast<double>(s_.lse_high[lane]));
    s_.delta[lane] = *args_.delta.at<float>(at.batch, at.row, at.head);
  }

  void attend(const Slice& slice) {
    const Interval seen = intersect(chunk_.keys, visible_keys(slice, rows_));
    if (seen.empty()) return;
    from_ = static_cast<int>(seen.begin - chunk_.keys.begin);
    to_ = static_cast<int>(seen.end - chunk_.keys.begin);
    mark_lanes(slice, seen, rows_, s_.marks.first + from_, s_.marks.last + from_);
    for (int lane = 0; lane < lanes_; ++lane) {
      const std::int64_t row = rows_.begin + lane;
      const Interval keys = intersect(seen, visible_keys(slice, {row, HWY_MIN(row + 1, rows_.end)}));
      s_.from[lane] = keys.empty() ? 0 : static_cast<std::int32_t>(keys.begin - chunk_.keys.begin);
      s_.to[lane] = keys.empty() ? 0 : static_cast<std::int32_t>(keys.end - chunk_.keys.begin);
    }
    for (int lane = 0; lane < lanes_; lane += kPanel) score_panel(lane);
    add_grad_values();
    add_grad_keys();
    multiply_grad_queries();
  }

  /// P and dS of one panel for keys [from_, to_), zeros where none of its lanes sees the key.
  void score_panel(int lane) {
    PanelKeys keys = panel_keys(s_.marks.first + from_, s_.marks.last + from_, to_ - from_, lane);
    keys.from += from_;
    keys.to = HWY_MAX(keys.to + from_, keys.from);
    clear_scores(from_, keys.from, lane);
    clear_scores(keys.to, to_, lane);
    if (keys.from == keys.to) return;
    const std::int64_t count = keys.to - keys.from, offset = static_cast<std::int64_t>(keys.from) * s_.ld_s + lane;
    const std::int64_t first_key = static_cast<std::int64_t>(keys.from) * sizes_.ld_k;
    const std::int64_t first_query = static_cast<std::int64_t>(lane) * sizes_.ld_k;
    if (sizes_.wide) {
      multiply_wide(count, sizes_.d, {s_.wide.keys + first_key, sizes_.ld_k}, s_.wide.queries + first_query,
                    {s_.probs + offset, s_.ld_s, s_.wide.lse + lane, scale_.factor});
    } else {
      multiply<Major::row>(count, sizes_.d, {s_.keys + first_key, sizes_.ld_k}, {s_.queries_t + first_query, kPanel},
                           {s_.probs + offset, s_.ld_s, Start::zero});
    }
    multiply<Major::row>(count, sizes_.d_v,
                         {s_.values + static_cast<std::int64_t>(keys.from) * sizes_.ld_v, sizes_.ld_v},
                         {s_.grads_t + static_cast<std::int64_t>(lane) * sizes_.ld_v, kPanel},
                         {s_.grad_scores + offset, s_.ld_s, Start::zero});
    const bool masked = !keys.full || !finite_keys_;
    for (int half = 0; half < kPanel; half += kLanes) {
      if (masked) {
        differentiate<true>(lane + half, keys);
      } else {
        differentiate<false>(lane + half, keys);
      }
    }
  }

  void clear_scores(int from, int to, int lane) {
    for (int key = from; key < to; ++key) {
      const std::int64_t offset = static_cast<std::int64_t>(key) * s_.ld_s + lane;
      fill(s_.probs + offset, kPanel, 0);
      fill(s_.grad_scores + offset, kPanel, 0);
    }
  }

  /// P = 2^(score - lse), or 2^score where lse has been subtracted in float64, and dS = P∘(dP - delta), in place, for
  /// one vector of lanes.
  template <bool kMasked>
  void differentiate(int lane, PanelKeys keys) {
    const Floats f;
    const Vec high = hn::Set(f, scale_.high), low = hn::Set(f, scale_.low);
    const Vec lse_high = load_floats(s_.lse_high + lane), lse_low = load_floats(s_.lse_low + lane);
    const Vec delta = load_floats(s_.delta + lane);
    // Not Ne, which is false for a NaN on some machines: a row whose lse is NaN is alive.
    const auto alive = hn::Not(hn::Eq(lse_high, hn::Set(f, std::numeric_limits<float>::infinity())));
    for (int key = keys.from; key < keys.to; ++key) {
      float* const prob = s_.probs + static_cast<std::int64_t>(key) * s_.ld_s + lane;
      float* const grad = s_.grad_scores + static_cast<std::int64_t>(key) * s_.ld_s + lane;
      Vec x = load_floats(prob);
      if (!sizes_.wide) x = hn::Add(hn::MulSub(x, high, lse_high), hn::MulSub(x, low, lse_low));
      // P <= 1 whatever lse's rounding. By comparison, so that a NaN stays: which operand Min gives then is the
      // machine's.
      x = hn::IfThenElse(hn::Gt(x, hn::Zero(f)), hn::Zero(f), x);
      Vec p = exp2_scaled(x, hn::Set(f, 1.0F));
      Vec ds = hn::Mul(p, hn::Sub(load_floats(grad), delta));
      if constexpr (kMasked) {
        const auto sees = hn::And(alive, lanes_between(lane, s_.marks.first[key], s_.marks.last[key]));
        p = hn::IfThenElseZero(sees, p);
        ds = hn::IfThenElseZero(sees, ds);
      }
      hn::StoreU(p, f, prob);
      hn::StoreU(ds, f, grad);
    }
  }

  /// Pᵀ or dSᵀ from key from_ on.
  [[nodiscard]] Matrix from_first_key(const float* scores) const {
    return {scores + static_cast<std::int64_t>(from_) * s_.ld_s, s_.ld_s};
  }

  void add_grad_values() {
    const Target c{s_.grad_values + static_cast<std::int64_t>(from_) * sizes_.ld_v, sizes_.ld_v};
    const DepthRanges ranges{s_.marks.first + from_, s_.marks.last + from_};
    multiply_avoiding<Major::row>(to_ - from_, sizes_.d_v, from_first_key(s_.probs), {s_.grads, sizes_.ld_v}, c, ranges,
                                  finite_grads_ ? nullptr : s_.bad_grad);
  }

  void add_grad_keys() {
    const Target c{s_.grad_keys + static_cast<std::int64_t>(from_) * sizes_.ld_k, sizes_.ld_k};
    const DepthRanges ranges{s_.marks.first + from_, s_.marks.last + from_};
    multiply_avoiding<Major::row>(to_ - from_, sizes_.d, from_first_key(s_.grad_scores), {s_.queries, sizes_.ld_k}, c,
                                  ranges, finite_queries_ ? nullptr : s_.bad_query);
  }

  void multiply_grad_queries() {
    multiply_avoiding<Major::depth>(lanes_, sizes_.d, {s_.grad_scores, s_.ld_s}, {s_.keys, sizes_.ld_k},
                                    {s_.grad_queries, sizes_.ld_k}, {s_.from, s_.to},
                                    finite_keys_ ? nullptr : s_.marks.bad_key);
  }

  /// C += A·B over each row's range of depth. Rows of B that are `bad` (not finite) reach only the rows of C whose
  /// range holds them: 0 · NaN would reach others of a group of rows.
  template <Major kMajor>
  void multiply_avoiding(int rows, int columns, Matrix a, Matrix b, Target c, DepthRanges ranges,
                         const std::uint8_t* bad) {
    if (bad == nullptr) return multiply_ranged<kMajor>(rows, columns, a, b, c, ranges);
    const Floats f;
    for (int row = 0; row < rows; ++row) {
      for (int column = 0; column < columns; column += kLanes) {
        Vec sum = hn::Zero(f);
        for (std::int32_t k = ranges.from[row]; k < ranges.to[row]; ++k) {
          if (bad[k] != 0 && skips(kMajor, row, k)) continue;
          const float x = kMajor == Major::row ? a.data[row * a.ld + k] : a.data[k * a.ld + row];
          sum = hn::MulAdd(hn::Set(f, x), load_floats(b.data + k * b.ld + column), sum);
        }
        finish_sum(sum, c, row * c.ld, column);
      }
    }
  }

  /// A row that saw nothing sees no bad key either; whatever else is in range is seen.
  [[nodiscard]] bool skips(Major major, int row, int k) const { return s_.alive[major == Major::row ? k : row] == 0; }

  /// Adds this chunk's dQ of a tile after that of every chunk before it, so that sums have one order.
  void add_grad_queries(const Visit& visit, int head) {
    const std::int64_t slot = (chunk_.batch * args_.q.heads() + head) * shared_.work.tiles + visit.tile;
    std::atomic<int>& turn = shared_.turns[slot];
    while (turn.load(std::memory_order_acquire) != visit.turn) std::this_thread::yield();
    const bool fresh = args_.init_dq && visit.turn == 0;
    for (std::int64_t row = rows_.begin; row < rows_.end; ++row) {
      add_row(s_.grad_queries + (row - rows_.begin) * sizes_.ld_k, sizes_.d, scale(), fresh,
              args_.dq.at<float>(chunk_.batch, row, head));
    }
    turn.store(visit.turn + 1, std::memory_order_release);
  }

  void store_key(int key) {
    const std::int64_t row = chunk_.keys.begin + key;
    add_row(s_.grad_keys + static_cast<std::int64_t>(key) * sizes_.ld_k, sizes_.d, scale(), args_.init_dkv,
            args_.dk.at<float>(chunk_.batch, row, unit_.kv));
    add_row(s_.grad_values + static_cast<std::int64_t>(key) * sizes_.ld_v, sizes_.d_v, 1, args_.init_dkv,
            args_.dv.at<float>(chunk_.batch, row, unit_.kv));
  }

  /// to = (fresh ? 0 : to) + factor·from, whole vectors first.
  static void add_row(const float* from, int n, float factor, bool fresh, float* to) {
    const Floats f;
    const Vec by = hn::Set(f, factor);
    int i = 0;
    for (; i + kLanes <= n; i += kLanes) {
      const Vec product = hn::Mul(load_floats(from + i), by);
      hn::StoreU(fresh ? product : hn::Add(product, load_floats(to + i)), f, to + i);
    }
    for (; i < n; ++i) {
      const float product = from[i] * factor;
      to[i] = fresh ? product : to[i] + product;
    }
  }

  [[nodiscard]] float scale() const { return static_cast<float>(args_.scale); }

  static constexpr std::uint8_t kUnread = 2;

  const BackwardArgs& args_;
  const TileSizes& sizes_;
  const KeyChunk& chunk_;
  const HeadUnit& unit_;
  const BackwardShared& shared_;
  const BackwardScratch& s_;
  ScoreScale scale_;
  int keys_;               ///< of the chunk
  Interval rows_;          ///< of the query tile
  int lanes_ = 0;          ///< rows_ rounded up to whole panels
  int from_ = 0, to_ = 0;  ///< keys of the chunk that the slice at hand shows to the tile
  bool finite_keys_ = true, finite_queries_ = true, finite_grads_ = true;
};

void backward_chunk(const BackwardArgs& args, const TileSizes& sizes, const KeyChunk& chunk, const HeadUnit& unit,
                    const BackwardShared& shared, const BackwardScratch& scratch) {
  BackwardChunk(args, sizes, chunk, unit, shared, scratch).run();
}

}  // namespace rotunda::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace rotunda::cpu {

HWY_EXPORT(backward_chunk);

void backward_chunk(const BackwardArgs& args, const TileSizes& sizes, const KeyChunk& chunk, const HeadUnit& unit,
                    const BackwardShared& shared, const BackwardScratch& scratch) {
  HWY_DYNAMIC_DISPATCH(backward_chunk)(args, sizes, chunk, unit, shared, scratch);
}

}  // namespace rotunda::cpu
#endif
