#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <numeric>
#include <random>

#include "problem/band.hpp"
#include "rotunda/schedule.hpp"
#include "rotunda/shard.hpp"
#include "shard/row_costs.hpp"

namespace rotunda {
namespace {

Problem packed(const std::vector<std::int64_t>& lengths, Mask mask = Mask::causal) {
  Problem p;
  p.layout = Layout::thd;
  p.h_q = 1;
  p.d = 8;
  p.mask = mask;
  p.cu_q = {0};
  for (const std::int64_t length : lengths) p.cu_q.push_back(p.cu_q.back() + length);
  normalize(p);
  return p;
}

/// What a map achieves.
struct Quality {
  std::int64_t fewest = 0, most = 0;  ///< tokens of a rank
  double imbalance = 1;               ///< pairs of the costliest rank ÷ mean
  std::vector<std::size_t> split;     ///< documents on more than one rank
};

Quality quality(const Problem& problem, const TokenMap& map, Side side) {
  const auto offsets = document_offsets(problem, side);
  std::vector<std::vector<int>> owners(offsets.size() - 1);
  std::vector<double> pairs(static_cast<std::size_t>(map.ranks()));
  Quality result{map.tokens(), 0, 1, {}};
  for (int rank = 0; rank < map.ranks(); ++rank) {
    result.fewest = std::min(result.fewest, map.rows(rank));
    result.most = std::max(result.most, map.rows(rank));
    for (const Run& run : map.runs(rank)) {
      for (std::size_t i = 0; i + 1 < offsets.size(); ++i) {
        const bool meets = std::max(offsets[i], run.token) < std::min(offsets[i + 1], run.token + run.len);
        if (meets && (owners[i].empty() || owners[i].back() != rank)) owners[i].push_back(rank);
      }
      for (const Slice& s : mask_slices(problem)) {  // counted another way than the planner does
        const std::int64_t from = std::max(run.token, side == Side::query ? s.q_begin : s.k_begin);
        const std::int64_t to =
            std::min(run.token + run.len, side == Side::query ? s.q_begin + s.q_len : s.k_begin + s.k_len);
        if (from >= to) continue;
        const Slice piece = side == Side::query ? part(s, from - s.q_begin, to - from, 0, s.k_len)
                                                : part(s, 0, s.q_len, from - s.k_begin, to - from);
        pairs[static_cast<std::size_t>(rank)] += static_cast<double>(visible_pairs(piece));
      }
    }
  }
  const double total = std::accumulate(pairs.begin(), pairs.end(), 0.0);
  if (total > 0) result.imbalance = *std::ranges::max_element(pairs) * map.ranks() / total;
  for (std::size_t i = 0; i < owners.size(); ++i) {
    if (owners[i].size() > 1) result.split.push_back(i);
  }
  return result;
}

TEST(RowCosts, EqualCountingOneByOne) {
  std::mt19937_64 random(3);
  const auto between = [&](std::int64_t low, std::int64_t high) {
    return low + static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(high - low + 1));
  };
  for (int repeat = 0; repeat < 300; ++repeat) {
    std::vector<Slice> slices;
    for (std::int64_t i = between(0, 4); i > 0; --i) {
      Slice s{0, between(0, 9), between(0, 8), between(0, 9), between(0, 8), between(-9, 9), between(-9, 9)};
      if (between(0, 2) > 0) s.left = between(-6, 9);
      if (between(0, 2) > 0) s.right = between(-6, 9);
      slices.push_back(s);
    }
    std::vector<double> rows(20), keys(20);
    for (const Slice& s : slices) {
      for (std::int64_t i = 0; i < s.q_len; ++i) {
        for (std::int64_t j = 0; j < s.k_len; ++j) {
          const std::int64_t distance = (s.k_pos + j) - (s.q_pos + i);
          const bool left = s.left == kInfinity || -s.left <= distance,
                     right = s.right == kInfinity || distance <= s.right;
          if (!left || !right) continue;
          ++rows[static_cast<std::size_t>(s.q_begin + i)];
          ++keys[static_cast<std::size_t>(s.k_begin + j)];
        }
      }
    }
    const RowCosts q(slices, Side::query), k(slices, Side::key);
    for (std::int64_t begin = 0; begin <= 20; ++begin) {
      for (std::int64_t len = 0; begin + len <= 20; ++len) {
        EXPECT_EQ(q.of(begin, len), std::accumulate(rows.begin() + begin, rows.begin() + begin + len, 0.0));
        EXPECT_EQ(k.of(begin, len), std::accumulate(keys.begin() + begin, keys.begin() + begin + len, 0.0));
      }
    }
  }
}

TEST(Balanced, DocumentsStayWholeWhereTheyCan) {
  const Problem problem = packed({8500, 7000, 5200, 4100, 3000, 2140, 1800, 1028});
  ASSERT_EQ(problem.s_q, 32768);
  const Shard shard = make_shard(problem, ShardKind::balanced, 2);
  const Quality q = quality(problem, shard.q, Side::query);
  EXPECT_EQ(shard.chunk_size, 2048);
  EXPECT_LE(q.most - q.fewest, shard.chunk_size);
  EXPECT_LE(q.imbalance, 1.02);
  EXPECT_LE(q.split.size(), 2U);
}

TEST(Balanced, OnlyTheLongDocumentIsSplit) {
  const Problem problem = packed({1200, 900, 25316, 1400, 1100, 1052, 1000, 800});
  ASSERT_EQ(problem.s_q, 32768);
  for (const int ranks : {2, 4}) {
    const Shard shard = make_shard(problem, ShardKind::balanced, ranks);
    const Quality q = quality(problem, shard.q, Side::query);
    EXPECT_LE(q.most - q.fewest, shard.chunk_size);
    EXPECT_LE(q.imbalance, 1.02);
    EXPECT_EQ(q.split, std::vector<std::size_t>{2});
  }
}

TEST(Balanced, RandomBatchesOfEightDocuments) {
  std::mt19937_64 random(7);
  for (int repeat = 0; repeat < 200; ++repeat) {
    std::vector<std::int64_t> lengths;
    std::int64_t left = 32768;
    for (std::int64_t i = 0; i < 7; ++i) {  // 1028 .. 8500 each, so that what is left can be shared out
      const std::int64_t least = std::max<std::int64_t>(1028, left - (7 - i) * 8500);
      const std::int64_t most = std::min<std::int64_t>(8500, left - (7 - i) * 1028);
      lengths.push_back(least + static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(most - least + 1)));
      left -= lengths.back();
    }
    lengths.push_back(left);
    std::ranges::shuffle(lengths, random);
    const Problem problem = packed(lengths);
    SCOPED_TRACE(to_text(problem));
    const Shard shard = make_shard(problem, ShardKind::balanced, 2);
    const Quality q = quality(problem, shard.q, Side::query);
    EXPECT_LE(q.most - q.fewest, shard.chunk_size);
    EXPECT_LE(q.imbalance, 1.02);
    EXPECT_LE(q.split.size(), 2U);
  }
}

TEST(Balanced, OneCausalSequenceIsEven) {
  for (int ranks = 1; ranks <= 9; ++ranks) {
    for (const char* text : {"b=2 s_q=4096 h_q=1 d=8 mask=causal", "s_q=5000 h_q=1 d=8 mask=none",
                             "s_q=5000 h_q=1 d=8 mask=causal window=300,0", "b=2 s_q=3000 lens_q=3000,700 h_q=1 d=8"}) {
      SCOPED_TRACE(std::string(text) + " ranks " + std::to_string(ranks));
      const Problem problem = parse_problem(text);
      const Shard shard = make_shard(problem, ShardKind::balanced, ranks);
      const Quality q = quality(problem, shard.q, Side::query);
      EXPECT_LE(q.most - q.fewest, shard.chunk_size);
      EXPECT_LE(q.imbalance, 1.02);
    }
  }
}

TEST(Balanced, TokensAreEqualWhateverTheProblem) {
  std::mt19937_64 random(11);
  const auto up_to = [&](std::int64_t most) {
    return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(most + 1));
  };
  for (int repeat = 0; repeat < 400; ++repeat) {
    std::vector<std::int64_t> q_lengths, k_lengths;
    for (std::int64_t i = up_to(8); i > 0; --i) {
      q_lengths.push_back(up_to(3) == 0 ? up_to(400) : up_to(60));
      k_lengths.push_back(up_to(3) == 0 ? up_to(400) : up_to(60));
    }
    Problem problem = packed(q_lengths, up_to(1) == 0 ? Mask::causal : Mask::none);
    if (up_to(1) == 0) {
      Problem keys = packed(k_lengths);
      problem.cu_k = keys.cu_q;
      problem.used_k.clear();
      normalize(problem);
    }
    const int ranks = 1 + repeat % 9;
    const std::int64_t chunk = 1 + up_to(30);
    SCOPED_TRACE(to_text(problem) + " ranks " + std::to_string(ranks) + " chunk " + std::to_string(chunk));
    const Shard shard = make_shard(problem, ShardKind::balanced, ranks, chunk);
    for (const auto& [map, side] : {std::pair{&shard.q, Side::query}, {&shard.k, Side::key}}) {
      const Quality got = quality(problem, *map, side);
      EXPECT_LE(got.most - got.fewest, chunk);
    }
  }
}

TEST(Balanced, ADocumentsKeysFollowItsQueries) {
  Problem problem = packed({4000, 1000, 3000, 2000, 2500, 1500});
  problem.cu_k = packed({400, 100, 300, 200, 250, 150}).cu_q;
  problem.used_k.clear();
  problem.mask = Mask::none;
  problem.window = {};
  normalize(problem);
  const Shard shard = make_shard(problem, ShardKind::balanced, 2);
  const auto owner = [](const TokenMap& map, std::int64_t token) {
    for (int rank = 0; rank < map.ranks(); ++rank) {
      for (const auto& run : map.runs(rank)) {
        if (run.token <= token && token < run.token + run.len) return rank;
      }
    }
    return -1;
  };
  const auto split_q = quality(problem, shard.q, Side::query).split;
  int whole = 0;
  for (std::size_t i = 0; i < 6; ++i) {
    if (std::ranges::count(split_q, i) > 0) continue;
    ++whole;
    EXPECT_EQ(owner(shard.q, problem.cu_q[i]), owner(shard.k, problem.cu_k[i])) << "document " << i;
    EXPECT_EQ(owner(shard.q, problem.cu_q[i]), owner(shard.k, problem.cu_k[i + 1] - 1)) << "document " << i;
  }
  EXPECT_GE(whole, 4);
}

TEST(Balanced, PlansAMillionTokensQuickly) {
  std::mt19937_64 random(5);
  std::vector<std::int64_t> lengths;
  for (int i = 0; i < 10'000; ++i) lengths.push_back(1 + static_cast<std::int64_t>(random() % 210));
  const Problem problem = packed(lengths);
  EXPECT_GT(problem.s_q, 1'000'000);
  const auto begin = std::chrono::steady_clock::now();
  const Shard shard = make_shard(problem, ShardKind::balanced, 64);
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  EXPECT_LT(seconds, 10);  // far more than it takes, for sanitizers and busy machines; s² work would take minutes
  std::int64_t most = 0, fewest = problem.s_q;
  for (int rank = 0; rank < 64; ++rank) {
    most = std::max(most, shard.q.rows(rank));
    fewest = std::min(fewest, shard.q.rows(rank));
  }
  EXPECT_LE(most - fewest, shard.chunk_size);
}

}  // namespace
}  // namespace rotunda
