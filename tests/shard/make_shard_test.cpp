#include <gtest/gtest.h>

#include <random>

#include "rotunda/shard.hpp"
#include "shard/balanced.hpp"
#include "support/error_test.hpp"

namespace rotunda {
namespace {

using Runs = std::vector<std::vector<Run>>;

Runs runs_of(const TokenMap& map) {
  Runs runs;
  for (int rank = 0; rank < map.ranks(); ++rank) runs.push_back(map.runs(rank));
  return runs;
}

Problem dense(std::int64_t s_q, std::int64_t s_k) {
  return parse_problem("s_q=" + std::to_string(s_q) + " s_k=" + std::to_string(s_k) + " h_q=1 d=8 mask=causal");
}

Problem packed(const std::string& rest) {
  return parse_problem("layout=thd h_q=1 d=8 mask=causal " + rest);
}

TEST(ShardKind, NamesParse) {
  for (const ShardKind kind : kShardKinds) EXPECT_EQ(parse_shard_kind(to_string(kind)), kind);
  EXPECT_ERROR((void)parse_shard_kind("zigzag"), ErrorKind::bad_input,
               "'zigzag': allowed are contiguous, dual_chunk, dual_chunk_doc, striped, balanced");
}

TEST(MakeShard, Contiguous) {
  const Shard shard = make_shard(dense(10, 3), ShardKind::contiguous, 4);
  EXPECT_EQ(runs_of(shard.q), (Runs{{{0, 3}}, {{3, 3}}, {{6, 2}}, {{8, 2}}}));
  EXPECT_EQ(runs_of(shard.k), (Runs{{{0, 1}}, {{1, 1}}, {{2, 1}}, {}}));
  EXPECT_EQ(shard.kind, ShardKind::contiguous);
}

TEST(MakeShard, DualChunk) {
  EXPECT_EQ(runs_of(make_shard(dense(16, 16), ShardKind::dual_chunk, 4).q),
            (Runs{{{0, 2}, {14, 2}}, {{2, 2}, {12, 2}}, {{4, 2}, {10, 2}}, {{6, 4}}}));
  // 11 tokens in 6 chunks of 2, 2, 2, 2, 2, 1.
  EXPECT_EQ(runs_of(make_shard(dense(11, 11), ShardKind::dual_chunk, 3).q),
            (Runs{{{0, 2}, {10, 1}}, {{2, 2}, {8, 2}}, {{4, 4}}}));
  // 3 tokens in 8 chunks: only the first three have one.
  EXPECT_EQ(runs_of(make_shard(dense(3, 3), ShardKind::dual_chunk, 4).q), (Runs{{{0, 1}}, {{1, 1}}, {{2, 1}}, {}}));
  EXPECT_EQ(runs_of(make_shard(dense(5, 5), ShardKind::dual_chunk, 1).q), (Runs{{{0, 5}}}));
}

TEST(MakeShard, DualChunkIgnoresDocumentsAndDualChunkDocDoesNot) {
  const Problem problem = packed("cu_q=0,8,8,13");
  EXPECT_EQ(runs_of(make_shard(problem, ShardKind::dual_chunk, 2).q),  // chunks of 4, 3, 3, 3
            (Runs{{{0, 4}, {10, 3}}, {{4, 6}}}));
  EXPECT_EQ(runs_of(make_shard(problem, ShardKind::dual_chunk_doc, 2).q),  // 2, 2, 2, 2 and 2, 1, 1, 1
            (Runs{{{0, 2}, {6, 4}, {12, 1}}, {{2, 4}, {10, 2}}}));
  EXPECT_EQ(runs_of(make_shard(dense(8, 8), ShardKind::dual_chunk_doc, 2).q),
            runs_of(make_shard(dense(8, 8), ShardKind::dual_chunk, 2).q));
}

TEST(MakeShard, Striped) {
  const Shard shard = make_shard(dense(10, 2), ShardKind::striped, 4);
  EXPECT_EQ(runs_of(shard.q), (Runs{{{0, 3}}, {{1, 3}}, {{2, 2}}, {{3, 2}}}));
  EXPECT_EQ(shard.q.stride(), 4);
  EXPECT_EQ(shard.q.tokens_of(1), (std::vector<std::int64_t>{1, 5, 9}));
  EXPECT_EQ(runs_of(shard.k), (Runs{{{0, 1}}, {{1, 1}}, {}, {}}));
}

TEST(MakeShard, Balanced) {
  // Chunks of 2 with 3, 7, 11 and 15 pairs: heaviest and lightest together.
  EXPECT_EQ(runs_of(make_shard(dense(8, 8), ShardKind::balanced, 2, 2).q), (Runs{{{0, 2}, {6, 2}}, {{2, 4}}}));
  // Documents of 28, 6, 6 and 28 pairs stay whole; where two ranks are equal, the first takes the next document.
  EXPECT_EQ(runs_of(make_shard(packed("cu_q=0,7,10,13,20"), ShardKind::balanced, 2, 1).q),
            (Runs{{{0, 10}}, {{10, 10}}}));
  EXPECT_EQ(runs_of(make_shard(packed("cu_q=0,7,14,20,26"), ShardKind::balanced, 2, 1).q),
            (Runs{{{0, 7}, {14, 6}}, {{7, 7}, {20, 6}}}));
  // 10 pairs against 1 + 1: the long document is split into 1 + 4 and 2 + 3, so 3 tokens and 6 pairs each.
  EXPECT_EQ(runs_of(make_shard(packed("cu_q=0,4,5,6"), ShardKind::balanced, 2, 1).q),
            (Runs{{{0, 1}, {3, 2}}, {{1, 2}, {5, 1}}}));
  EXPECT_EQ(make_shard(dense(8, 8), ShardKind::balanced, 2, 2).chunk_size, 2);
}

TEST(MakeShard, NoTokensAndFewerThanRanks) {
  for (const ShardKind kind : kShardKinds) {
    for (const std::int64_t tokens : {0, 1, 2, 5}) {
      const Shard shard = make_shard(dense(tokens, tokens), kind, 8);
      std::int64_t most = 0, all = 0;
      for (int rank = 0; rank < 8; ++rank) {
        most = std::max(most, shard.q.rows(rank));
        all += shard.q.rows(rank);
      }
      EXPECT_EQ(all, tokens) << to_string(kind);
      EXPECT_EQ(most, tokens == 0 ? 0 : 1) << to_string(kind);
    }
    EXPECT_EQ(make_shard(packed("cu_q=0"), kind, 3).q.tokens(), 0);
    EXPECT_EQ(make_shard(parse_problem("b=0 s_q=4 h_q=1 d=8"), kind, 2).q.tokens(), 4);
  }
}

TEST(MakeShard, RefusesWrongNumbers) {
  EXPECT_ERROR((void)make_shard(dense(4, 4), ShardKind::striped, 0), ErrorKind::bad_input, "ranks=0");
  EXPECT_ERROR((void)make_shard(dense(4, 4), ShardKind::balanced, 2, -3), ErrorKind::bad_input, "chunk-size=-3");
}

TEST(MakeShard, DefaultChunkSize) {
  EXPECT_EQ(default_chunk_size(0, 4), 1);
  EXPECT_EQ(default_chunk_size(100, 2), 7);
  EXPECT_EQ(default_chunk_size(16 * 63, 2), 63);
  EXPECT_EQ(default_chunk_size(16 * 65, 2), 128);
  EXPECT_EQ(default_chunk_size(32768, 2), 2048);
}

/// A random problem: dense, packed with padding and empty documents, or cross attention.
Problem random_problem(std::mt19937_64& random) {
  const auto up_to = [&](std::int64_t most) {
    return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(most + 1));
  };
  Problem p;
  p.h_q = 1;
  p.d = 8;
  p.mask = up_to(1) == 0 ? Mask::causal : Mask::none;
  if (up_to(2) == 0) p.window.left = up_to(20);
  if (up_to(1) == 0) {
    p.b = up_to(3);
    p.s_q = up_to(200);
    p.s_k = up_to(1) == 0 ? p.s_q : up_to(200);
  } else {
    p.layout = Layout::thd;
    const std::int64_t documents = up_to(6);
    const auto offsets = [&] {
      std::vector<std::int64_t> list{0};
      for (std::int64_t i = 0; i < documents; ++i) list.push_back(list.back() + up_to(2) * up_to(40));
      return list;
    };
    p.cu_q = offsets();
    if (up_to(1) == 0) p.cu_k = offsets();
    for (std::size_t i = 1; i < p.cu_q.size(); ++i) p.used_q.push_back(up_to(p.cu_q[i] - p.cu_q[i - 1]));
  }
  normalize(p);
  return p;
}

/// TokenMap refuses anything but a cover (token_map_test.cpp); here: what depends on the problem.
TEST(MakeShard, RandomProblemsOwnEveryTokenOnce) {
  std::mt19937_64 random(1);
  for (int repeat = 0; repeat < 600; ++repeat) {
    const Problem problem = random_problem(random);
    const auto q = document_offsets(problem, Side::query), k = document_offsets(problem, Side::key);
    const int ranks = 1 + repeat % 9;
    const std::int64_t chunk = repeat % 4;
    for (const ShardKind kind : kShardKinds) {
      SCOPED_TRACE(to_text(problem) + " " + to_string(kind) + " ranks " + std::to_string(ranks));
      const Shard shard = make_shard(problem, kind, ranks, chunk);
      EXPECT_EQ(shard, make_shard(problem, kind, ranks, chunk));
      EXPECT_EQ(shard.q == shard.k, q == k || runs_of(shard.q) == runs_of(shard.k));
      for (const TokenMap* map : {&shard.q, &shard.k}) {
        ASSERT_EQ(map->ranks(), ranks);
        ASSERT_EQ(map->tokens(), map == &shard.q ? q.back() : k.back());
        std::vector<int> owners(static_cast<std::size_t>(map->tokens()), 0);
        for (int rank = 0; rank < ranks; ++rank) {
          for (const std::int64_t token : map->tokens_of(rank)) ++owners[static_cast<std::size_t>(token)];
        }
        EXPECT_EQ(owners, std::vector<int>(owners.size(), 1));
      }
    }
  }
}

}  // namespace
}  // namespace rotunda
