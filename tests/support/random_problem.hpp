// Random problems for property tests: every key, every layout, sizes from 0. The same problem for the same seed and
// limits on every machine. Header-only; needs rotunda_problem.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <utility>
#include <vector>

#include "rotunda/problem.hpp"

namespace rotunda::testing {

/// splitmix64 as a stream of numbers.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}

  std::uint64_t bits() {
    std::uint64_t z = state_ += 0x9E3779B97F4A7C15U;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9U;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBU;
    return z ^ (z >> 31);
  }
  /// From first to last, both included.
  std::int64_t between(std::int64_t first, std::int64_t last) {
    const auto count = static_cast<std::uint64_t>(last) - static_cast<std::uint64_t>(first) + 1;
    return static_cast<std::int64_t>(static_cast<std::uint64_t>(first) + (count == 0 ? bits() : bits() % count));
  }
  bool percent(int chance) { return between(1, 100) <= chance; }
  template <class T, std::size_t kCount>
  T one_of(const std::array<T, kCount>& choices) {
    return choices[static_cast<std::size_t>(between(0, kCount - 1))];
  }
  template <class T>
  T one_of(std::initializer_list<T> choices) {
    return *(choices.begin() + between(0, static_cast<std::int64_t>(choices.size()) - 1));
  }

 private:
  std::uint64_t state_;
};

/// What random_problem may make.
struct RandomLimits {
  std::int64_t max_work = std::int64_t{1} << 14;  ///< query rows · key rows · query heads, over all batch entries
  int max_head_dim = 32;                          ///< of d and d_v
  bool slices = true;                             ///< general masks among them
  bool huge_numbers = true;                       ///< windows, chunks and positions near 2^63 among them
};

namespace random_problem_detail {

inline std::int64_t length(Random& random, std::int64_t most) {
  if (random.percent(6)) return 0;
  if (random.percent(8)) return std::min<std::int64_t>(1, most);
  return random.between(0, most);
}

/// The greatest number whose square is at most n.
inline std::int64_t square_root(std::int64_t n) {
  std::int64_t root = 0;
  while ((root + 1) * (root + 1) <= n) ++root;
  return root;
}

inline void pick_heads(Random& random, const RandomLimits& limits, Problem& p) {
  p.h_kv = static_cast<int>(random.between(1, 3));
  p.h_q = p.h_kv * static_cast<int>(random.between(1, 3));
  p.d = static_cast<int>(random.between(1, limits.max_head_dim));
  if (random.percent(40)) p.d = std::min(limits.max_head_dim, random.one_of({8, 16, 32}));
  p.d_v = random.percent(60) ? p.d : static_cast<int>(random.between(1, limits.max_head_dim));
}

inline void pick_flags(Random& random, Problem& p) {
  p.dtype = random.one_of({DType::bf16, DType::fp16, DType::fp32});
  p.sink = random.one_of({Sink::none, Sink::none, Sink::zero, Sink::learnable});
  p.max_logit = random.percent(30);
  p.deterministic = random.percent(30);
  p.grad = random.percent(50);
  if (random.percent(25)) p.scale = static_cast<double>(random.between(1, 1000)) / 1024.0;
}

inline std::int64_t window_edge(Random& random, const RandomLimits& limits, std::int64_t rows) {
  if (random.percent(30)) return kInfinity;
  if (limits.huge_numbers && random.percent(10)) return kInfinity - random.between(1, 3);
  return random.between(0, std::max<std::int64_t>(rows / 2, 1));
}

inline void pick_mask(Random& random, const RandomLimits& limits, std::int64_t rows, Problem& p) {
  p.mask = random.one_of({Mask::none, Mask::causal, Mask::causal});
  p.align = random.one_of({Align::top_left, Align::bottom_right});
  if (random.percent(45)) p.window = {window_edge(random, limits, rows), window_edge(random, limits, rows)};
  if (random.percent(25)) p.prefix = random.between(1, rows + 2);
  if (random.percent(25)) p.chunk = random.between(1, rows + 2);
  if (limits.huge_numbers && random.percent(2)) p.chunk = kInfinity;
  if (limits.huge_numbers && random.percent(2)) p.prefix = kInfinity;
}

inline void pick_dense(Random& random, std::int64_t max_area, Problem& p) {
  p.b = random.percent(5) ? 0 : random.between(1, 3);
  const std::int64_t most = square_root(max_area / std::max<std::int64_t>(p.b, 1));
  p.s_q = length(random, most);
  p.s_k = random.percent(50) ? p.s_q : length(random, most);
}

inline void pick_lens(Random& random, Problem& p) {
  const auto lengths = [&](std::int64_t rows) {
    std::vector<std::int64_t> lens;
    for (std::int64_t i = 0; i < p.b; ++i) lens.push_back(random.percent(20) ? rows : random.between(0, rows));
    return lens;
  };
  if (random.percent(30)) p.lens_q = lengths(p.s_q);
  if (random.percent(30)) p.lens_k = lengths(p.s_k);
}

inline void pick_packed(Random& random, std::int64_t max_area, Problem& p) {
  const std::int64_t count = random.percent(4) ? 0 : random.between(1, 5);
  const std::int64_t most = square_root(max_area) / std::max<std::int64_t>(count, 1);
  const auto pack = [&](std::vector<std::int64_t>& cu, std::vector<std::int64_t>& used) {
    cu = {0};
    const bool padded = random.percent(50);
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int64_t rows = length(random, most);
      cu.push_back(cu.back() + rows);
      if (padded) used.push_back(random.percent(30) ? rows : random.between(0, rows));
    }
  };
  pack(p.cu_q, p.used_q);
  if (random.percent(40)) pack(p.cu_k, p.used_k);
}

/// Cuts a rectangle in two until `cuts` is used up, then covers a part of the pieces, some with two bands that share
/// no pair.
class SliceMaker {
 public:
  SliceMaker(Random& random, bool huge) : random_(random), huge_(huge) {}

  void cover(const Slice& piece, int cuts) {
    const bool by_rows = random_.percent(50);
    if (cuts > 0 && random_.percent(75)) {
      auto [first, second] = std::pair(piece, piece);
      auto& begin = by_rows ? second.q_begin : second.k_begin;
      auto& first_len = by_rows ? first.q_len : first.k_len;
      auto& second_len = by_rows ? second.q_len : second.k_len;
      first_len = random_.between(0, first_len);
      begin += first_len;
      second_len -= first_len;
      cover(first, cuts - 1);
      cover(second, cuts - 1);
      return;
    }
    if (random_.percent(25)) return;
    if (random_.percent(40)) {
      const std::int64_t high = random_.between(-piece.q_len, piece.k_len);  // of column - row
      add(piece, kInfinity, high);
      if (random_.percent(50)) add(piece, -(high + 1), random_.percent(50) ? kInfinity : high + 5);
    } else {
      add(piece, kInfinity, kInfinity);
    }
  }

  std::vector<Slice> take() {
    for (std::size_t i = slices_.size(); i > 1; --i) {
      std::swap(slices_[i - 1],
                slices_[static_cast<std::size_t>(random_.between(0, static_cast<std::int64_t>(i) - 1))]);
    }
    return std::move(slices_);
  }

 private:
  // left and right are about column - row of the piece; positions that differ move them along.
  void add(Slice piece, std::int64_t left, std::int64_t right) {
    piece.q_pos = random_.percent(50) ? piece.q_begin : random_.between(-100, 100);
    piece.k_pos = random_.percent(50) ? piece.k_begin : random_.between(-100, 100);
    if (huge_ && random_.percent(10)) {
      constexpr std::int64_t kFar = std::numeric_limits<std::int64_t>::max() - 1000;
      const std::int64_t base = random_.one_of({kFar, -kFar, std::int64_t{1} << 40, std::int64_t{1} << 62});
      piece.q_pos += base;
      piece.k_pos += base;
    }
    const std::int64_t shift = piece.k_pos - piece.q_pos;
    piece.left = left == kInfinity ? kInfinity : left - shift;
    piece.right = right == kInfinity ? kInfinity : right + shift;
    slices_.push_back(piece);
  }

  Random& random_;
  bool huge_;
  std::vector<Slice> slices_;
};

inline void pick_slices(Random& random, const RandomLimits& limits, std::int64_t max_area, Problem& p) {
  pick_dense(random, max_area, p);
  if (p.layout == Layout::thd) p.b = 1;
  SliceMaker maker(random, limits.huge_numbers);
  for (std::int64_t batch = 0; batch < p.b; ++batch) {
    if (random.percent(10)) continue;
    Slice whole;
    whole.batch = batch;
    whole.q_len = p.s_q;
    whole.k_len = p.s_k;
    maker.cover(whole, static_cast<int>(random.between(0, 4)));
  }
  p.slices = maker.take();
  if (p.layout == Layout::thd && random.percent(50)) {
    p.cu_q = {0, p.s_q};
    p.cu_k = {0, p.s_k};
  }
}

}  // namespace random_problem_detail

/// A normalized problem.
[[nodiscard]] inline Problem random_problem(std::uint64_t seed, const RandomLimits& limits = {}) {
  namespace detail = random_problem_detail;
  Random random(seed);
  Problem p;
  p.layout = random.one_of({Layout::bshd, Layout::sbhd, Layout::bhsd, Layout::thd, Layout::thd});
  detail::pick_heads(random, limits, p);
  detail::pick_flags(random, p);
  const std::int64_t max_area = std::max<std::int64_t>(limits.max_work / p.h_q, 1);
  if (limits.slices && random.percent(20)) {
    detail::pick_slices(random, limits, max_area, p);
  } else if (p.layout == Layout::thd) {
    detail::pick_packed(random, max_area, p);
    detail::pick_mask(random, limits, detail::square_root(max_area), p);
  } else {
    detail::pick_dense(random, max_area, p);
    detail::pick_lens(random, p);
    detail::pick_mask(random, limits, std::max(p.s_q, p.s_k), p);
  }
  normalize(p);
  return p;
}

/// Packed documents, one of them long: on balanced shards most lie whole on one rank and some are split.
[[nodiscard]] inline Problem random_documents(std::uint64_t seed, const RandomLimits& limits = {}) {
  namespace detail = random_problem_detail;
  Random random(seed);
  Problem p;
  p.layout = Layout::thd;
  detail::pick_heads(random, limits, p);
  detail::pick_flags(random, p);
  p.mask = random.one_of({Mask::none, Mask::causal, Mask::causal});
  const std::int64_t count = random.between(3, 9);
  const std::int64_t most = std::max<std::int64_t>(detail::square_root(limits.max_work / p.h_q) / (count + 2), 1);
  const std::int64_t longest = random.between(0, count - 1);
  const bool padded = random.percent(30);
  p.cu_q = {0};
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t rows = i == longest ? 3 * most : detail::length(random, most);
    p.cu_q.push_back(p.cu_q.back() + rows);
    if (padded) p.used_q.push_back(random.percent(50) ? rows : random.between(0, rows));
  }
  if (random.percent(25)) p.window = {random.between(0, most), random.between(0, most)};
  normalize(p);
  return p;
}

}  // namespace rotunda::testing
