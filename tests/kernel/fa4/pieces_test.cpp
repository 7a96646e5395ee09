// How slices become launches, on the host alone: every visible pair in one piece, tiles of sums shared by no two
// segments, and tables that say the same as the pieces.
#include "kernel/fa4/pieces.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "kernel/fa4/tables.hpp"
#include "support/random_problem.hpp"
#include "support/visible.hpp"

namespace rotunda::fa4 {
namespace {

using Pair = std::array<std::int64_t, 3>;  // batch, row, key

std::multiset<Pair> pairs_of(const std::vector<Slice>& slices) {
  std::multiset<Pair> pairs;
  for (const Slice& s : slices) {
    for (std::int64_t i = s.q_begin; i < s.q_begin + s.q_len; ++i) {
      for (std::int64_t j = s.k_begin; j < s.k_begin + s.k_len; ++j) {
        if (rotunda::testing::slice_sees(s, i, j)) pairs.insert({s.batch, i, j});
      }
    }
  }
  return pairs;
}

template <class Sees>
void add_pairs(const Piece& p, std::multiset<Pair>& pairs, Sees&& sees) {
  for (std::int64_t i = 0; i < p.q_len; ++i) {
    for (std::int64_t j = 0; j < p.k_len; ++j) {
      if (sees(i, j)) pairs.insert({p.batch, p.q_begin + i, p.k_begin + j});
    }
  }
}

std::multiset<Pair> pairs_of(const std::vector<Launch>& launches) {
  std::multiset<Pair> pairs;
  for (const Launch& launch : launches) {
    for (const Piece& p : launch) {
      add_pairs(p, pairs, [&](std::int64_t i, std::int64_t j) { return p.low <= j - i && j - i <= p.high; });
    }
  }
  return pairs;
}

/// What the exported kernels make of their tables: the contract at the top of tools/fa4/slices.py.
std::multiset<Pair> pairs_of(const Launch& launch, const Tables& tables) {
  std::multiset<Pair> pairs;
  const std::size_t n = launch.size();
  const std::int32_t* const first_q = tables.values.data();
  const std::int32_t* const first_k = first_q + n + 1;
  const std::int32_t* const used_q = first_k + n + 1;
  const std::int32_t* const used_k = used_q + 5 * n;
  for (std::size_t at = 0; at < n; ++at) {
    EXPECT_EQ(used_q[at], launch[at].q_len);
    EXPECT_EQ(used_q[3 * n + at], launch[at].q_begin);
    const Piece seen = {used_q[2 * n + at], first_q[at], used_q[at], first_k[at], used_k[at]};
    const std::int64_t left = used_k[2 * n + at], right = used_k[3 * n + at];
    add_pairs(seen, pairs, [&](std::int64_t i, std::int64_t j) {
      const std::int64_t distance = j - i - (used_k[at] - used_q[at]);
      return -left <= distance && distance <= right;
    });
  }
  return pairs;
}

LaunchFrame frame_of(Side blocks_of) {
  return {{}, {}, {}, 0, blocks_of, 16};
}

Problem random_of(std::uint64_t seed) {
  rotunda::testing::RandomLimits limits;
  limits.max_work = 1 << 13;
  return rotunda::testing::random_problem(seed, limits);
}

void expect_disjoint(const Launch& launch, Side side) {
  std::set<std::pair<std::int64_t, std::int64_t>> rows;
  for (const Piece& p : launch) {
    const std::int64_t begin = side == Side::query ? p.q_begin : p.k_begin, end = begin + length_of(p, side);
    for (std::int64_t i = begin; i < end; ++i) {
      EXPECT_TRUE(rows.insert({p.batch, i}).second) << (side == Side::query ? "row " : "key ") << i;
    }
  }
}

std::set<std::pair<std::int64_t, std::int64_t>> rows_of(const Launch& launch) {
  std::set<std::pair<std::int64_t, std::int64_t>> rows;
  for (const Piece& p : launch) {
    for (std::int64_t i = 0; i < p.q_len; ++i) rows.insert({p.batch, p.q_begin + i});
  }
  return rows;
}

TEST(Fa4Pieces, ForwardSeesEveryPairOnceAndCoversAllRows) {
  for (std::uint64_t seed = 0; seed < 500; ++seed) {
    const Problem problem = random_of(seed);
    SCOPED_TRACE(to_text(problem));
    const std::vector<Slice> slices = mask_slices(problem);
    const auto all = static_cast<std::size_t>(problem.batches() * problem.s_q);
    for (const bool init : {false, true}) {
      for (const bool last : {false, true}) {
        const auto launches = forward_launches(slices, problem.batches(), problem.s_q, init, last);
        EXPECT_EQ(pairs_of(launches), pairs_of(slices));
        for (const Launch& launch : launches) expect_disjoint(launch, Side::query);
        EXPECT_TRUE(!init || rows_of(launches.front()).size() == all);
        EXPECT_TRUE(!last || rows_of(launches.back()).size() == all);
        EXPECT_TRUE(init || last || !slices.empty() || launches.empty());
      }
    }
    if (HasFailure()) return;
  }
}

/// Tiles of sums: each piece's tiles lie in one segment and are rows of the piece alone, whole or up to the segment's
/// end.
void expect_tiles_kept(const SumRows& sums, const Piece& p, Side side, int tile) {
  const std::int64_t begin = side == Side::query ? p.q_begin : p.k_begin, len = length_of(p, side);
  const std::int64_t sum = side == Side::query ? p.q_sum : p.k_sum;
  const auto holds = [&](const Segment& s) {
    return s.batch == p.batch && s.begin <= begin && begin < s.begin + s.len;
  };
  const auto segment = std::find_if(sums.segments.begin(), sums.segments.end(), holds);
  ASSERT_NE(segment, sums.segments.end());
  EXPECT_EQ(sum - segment->sum, begin - segment->begin);
  EXPECT_EQ(sum % tile, 0);
  EXPECT_EQ(segment->sum % tile, 0);
  const std::int64_t end = begin + len, segment_end = segment->begin + segment->len;
  EXPECT_LE(end, segment_end);
  EXPECT_TRUE(end == segment_end || (end - segment->begin) % tile == 0);
}

void expect_segments_apart(const SumRows& sums, int tile) {
  std::int64_t next = 0;
  std::pair<std::int64_t, std::int64_t> row = {-1, 0};
  for (const Segment& s : sums.segments) {
    EXPECT_EQ(s.sum, next);
    next += (s.len + tile - 1) / tile * tile;
    EXPECT_LE(row, std::pair(s.batch, s.begin));
    row = {s.batch, s.begin + s.len};
  }
  EXPECT_EQ(sums.rows, next);
}

void expect_backward_right(const std::vector<Slice>& slices, int tile_q, int tile_k, bool apart) {
  const BackwardLaunches work = backward_launches(slices, tile_q, tile_k, apart);
  EXPECT_EQ(pairs_of(work.launches), pairs_of(slices));
  expect_segments_apart(work.q, tile_q);
  expect_segments_apart(work.k, tile_k);
  for (const Launch& launch : work.launches) {
    for (const Piece& p : launch) {
      expect_tiles_kept(work.q, p, Side::query, tile_q);
      expect_tiles_kept(work.k, p, Side::key, tile_k);
    }
    if (!apart) continue;
    expect_disjoint(launch, Side::query);
    expect_disjoint(launch, Side::key);
  }
  EXPECT_TRUE(apart || work.launches.size() <= 1);
}

TEST(Fa4Pieces, BackwardKeepsToTiles) {
  for (std::uint64_t seed = 0; seed < 500; ++seed) {
    const Problem problem = random_of(seed);
    SCOPED_TRACE(to_text(problem));
    const std::vector<Slice> slices = mask_slices(problem);
    for (const auto& [tile_q, tile_k] : {std::pair{64, 128}, std::pair{4, 3}, std::pair{1, 16}}) {
      expect_backward_right(slices, tile_q, tile_k, false);
      expect_backward_right(slices, tile_q, tile_k, true);
    }
    if (HasFailure()) return;
  }
}

TEST(Fa4Pieces, DirectLaunchesMakeEachKeyOnce) {
  int direct = 0;
  for (std::uint64_t seed = 0; seed < 500; ++seed) {
    const Problem problem = random_of(seed);
    SCOPED_TRACE(to_text(problem));
    const std::vector<Slice> slices = mask_slices(problem);
    const auto work = direct_launch(slices, 16, problem.batches(), problem.s_k);
    if (!work) continue;
    direct += work->pieces > 1 ? 1 : 0;
    EXPECT_EQ(pairs_of(work->launches), pairs_of(slices));
    EXPECT_EQ(work->k.rows, 0);
    std::int64_t keys = 0;
    for (const Launch& launch : work->launches) {
      expect_disjoint(launch, Side::key);
      for (const Piece& p : launch) {
        keys += p.k_len;
        if (p.q_len > 0) expect_tiles_kept(work->q, p, Side::query, 16);
      }
    }
    EXPECT_EQ(keys, problem.batches() * problem.s_k);
    if (HasFailure()) return;
  }
  EXPECT_GT(direct, 50);
  const std::vector<Slice> shared = {{0, 0, 10, 0, 10, 0, 0, kInfinity, kInfinity},
                                     {0, 10, 10, 0, 9, 0, 0, kInfinity, kInfinity}};
  EXPECT_FALSE(direct_launch(shared, 16, 1, 20)) << "two pieces see the same keys";
}

TEST(Fa4Pieces, TablesSayTheSame) {
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    const Problem problem = random_of(seed);
    SCOPED_TRACE(to_text(problem));
    const std::vector<Slice> slices = mask_slices(problem);
    std::multiset<Pair> pairs;
    for (const Launch& launch : forward_launches(slices, problem.batches(), problem.s_q, true, true)) {
      const Tables tables = make_tables(launch, frame_of(Side::query));
      EXPECT_EQ(4 * (static_cast<std::int64_t>(tables.values.size()) + tables.blocks),
                table_bytes(launch, Side::query, 16));
      pairs.merge(pairs_of(launch, tables));
    }
    EXPECT_EQ(pairs, pairs_of(slices));
    if (HasFailure()) return;
  }
}

/// One dense slice of 70 rows and 50 keys with a window.
Tables tables_of(std::int64_t left, std::int64_t right) {
  const std::vector<Slice> slices = {{0, 0, 70, 0, 50, 0, 0, left, right}};
  const auto launches = forward_launches(slices, 1, 70, true, true);
  EXPECT_EQ(launches.size(), 1U);
  Tables tables = make_tables(launches.front(), frame_of(Side::query));
  EXPECT_EQ(pairs_of(launches.front(), tables), pairs_of(slices));
  return tables;
}

TEST(Fa4Pieces, AnEmptyWindowIsEmptyAndNoneIsNone) {
  constexpr std::int32_t kWidest = 1 << 29;
  constexpr std::size_t kUsedQ = 4, kUsedK = 9;  // of one piece: after two times two first rows, and five numbers
  const Tables none = tables_of(kInfinity, kInfinity);
  ASSERT_EQ(none.pieces, 1);
  EXPECT_EQ(none.values[kUsedK + 2], kWidest);
  EXPECT_EQ(none.values[kUsedK + 3], kWidest);
  const Tables empty = tables_of(-1, 0);  // from one past the diagonal to it: nothing, in no library's words "all"
  ASSERT_EQ(empty.pieces, 1);
  EXPECT_EQ(empty.values[kUsedQ], 70) << "all rows";
  EXPECT_EQ(empty.values[kUsedK], 0) << "and no key";
  (void)tables_of(0, 0);
  (void)tables_of(-3, 7);
  (void)tables_of(7, -3);
  (void)tables_of(kInfinity, -200);
}

TEST(Fa4Pieces, BlocksAreCounted) {
  Launch launch;
  launch.push_back({.q_len = 17, .k_len = 5});
  launch.push_back({.q_len = 16, .k_len = 40});
  const Tables by_rows = make_tables(launch, frame_of(Side::query));
  EXPECT_EQ(by_rows.blocks, 3);
  const Tables by_keys = make_tables(launch, frame_of(Side::key));
  EXPECT_EQ(by_keys.blocks, 4);
  std::int32_t memory[64];
  const LaunchTables at = by_keys.at(memory);
  EXPECT_EQ((at.grid_rows + 2 * (16 - 1)) / 16, 4) << "the grid that FA4 makes of it";
  EXPECT_EQ(static_cast<std::int32_t*>(at.block_owner.data) - memory,
            static_cast<std::ptrdiff_t>(by_keys.values.size()));
}

TEST(Fa4Pieces, EqualEntriesAreOneSlice) {
  const LaunchFrame frame{{100, 0}, {0, 3}, {2, 4, 1}, 3, Side::key, 16};
  Problem problem = parse_problem("b=3 s_q=70 s_k=90 h_q=2 d=8 mask=causal grad=1");
  BackwardLaunches work = backward_launches(mask_slices(problem), 64, 16, false);
  const auto one = as_one_slice(work.launches.front(), frame, 3);
  ASSERT_TRUE(one);
  EXPECT_EQ(one->batches, 3);
  EXPECT_EQ(one->blocks, 5) << "90 keys, of which 70 are seen";
  EXPECT_EQ(one->rows_q, 70);
  EXPECT_EQ(one->rows_k, 70);
  EXPECT_EQ(one->right, 0);
  EXPECT_EQ(one->q_sum_step, 128);
  EXPECT_EQ(one->k_sum_step, 80);
  EXPECT_EQ(one->group, 2);
  EXPECT_EQ(one->q_first, 4);
  EXPECT_EQ(one->kv_first, 1);
  EXPECT_EQ(one->flags, 3);
  EXPECT_FALSE(as_one_slice(work.launches.front(), frame, 4)) << "an entry has none";
  work = backward_launches(mask_slices(parse_problem("b=3 s_q=70 h_q=2 d=8 mask=causal window=9,0")), 64, 16, false);
  EXPECT_FALSE(as_one_slice(work.launches.front(), frame, 3)) << "a left bound";
  const auto nothing = forward_launches({}, 1, 70, true, true);
  EXPECT_FALSE(as_one_slice(nothing.front(), frame, 1)) << "rows without keys";
  problem = parse_problem("b=3 s_q=70 s_k=90 h_q=2 d=8 mask=causal lens_q=70,69,70 grad=1");
  work = backward_launches(mask_slices(problem), 64, 16, false);
  EXPECT_FALSE(as_one_slice(work.launches.front(), frame, 3));
}

TEST(Fa4Pieces, JoinedSlicesAreOneLaunch) {
  // A causal square, cut by rows and keys as a ring does.
  std::vector<Slice> slices;
  for (std::int64_t i = 0; i < 4; ++i) {
    for (std::int64_t j = 0; j <= i; ++j) {
      slices.push_back({0, 32 * i, 32, 32 * j, 32, 32 * i, 32 * j, kInfinity, i == j ? 0 : kInfinity});
    }
  }
  const auto forward = forward_launches(slices, 1, 128, true, true);
  ASSERT_EQ(forward.size(), 1U);
  EXPECT_EQ(forward.front().size(), 1U);
  const BackwardLaunches backward = backward_launches(slices, 64, 128, true);
  EXPECT_EQ(backward.pieces, 1);
  EXPECT_EQ(backward.launches.size(), 1U);
}

}  // namespace
}  // namespace rotunda::fa4
