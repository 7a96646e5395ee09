// Hand-computed facts of schedules.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "rotunda/schedule.hpp"
#include "schedule/segments.hpp"
#include "schedule/team.hpp"
#include "support/error_test.hpp"

namespace rotunda {
namespace {

Program forward(const std::string& text, ShardKind shard, const ScheduleOptions& options, int rank, int ranks) {
  const Problem problem = parse_problem(text);
  return make_program(problem, make_shard(problem, shard, ranks), options, rank, false);
}

std::int64_t workspace(const Program& program, const std::string& prefix) {
  std::int64_t bytes = 0;
  for (const Buffer& buffer : program.buffers) {
    const bool counted = buffer.binding == Binding::workspace && buffer.name.rfind(prefix, 0) == 0;
    if (counted) bytes += buffer.bytes();
  }
  return bytes;
}

TEST(P2p, MemoryIsFlatFrom2To64Ranks) {
  // 64 rows a rank, whatever the ranks: two K and two V buffers and one accumulator.
  for (const ShardKind shard : {ShardKind::contiguous, ShardKind::dual_chunk}) {
    for (const int ranks : {2, 3, 4, 8, 16, 64}) {
      const std::string text = "b=1 h_q=4 h_kv=2 d=32 mask=none s_q=" + std::to_string(64 * ranks);
      const Program program = forward(text, shard, {ScheduleKind::p2p, 0, 0}, 1, ranks);
      EXPECT_EQ(workspace(program, "k"), 2 * 64 * 2 * 32 * 2) << ranks;
      EXPECT_EQ(workspace(program, "v"), 2 * 64 * 2 * 32 * 2) << ranks;
      EXPECT_EQ(workspace(program, "acc"), 64 * 4 * 32 * 4) << ranks;
      const std::int64_t low_bits_of_lse = 64 * 4 * 4;
      EXPECT_EQ(program.workspace_bytes, 4 * 64 * 2 * 32 * 2 + 64 * 4 * 32 * 4 + low_bits_of_lse) << ranks;
    }
  }
}

TEST(P2p, AWindowCostsTheHopsItCrosses) {
  struct Case {
    const char* window;
    int hops;  // of a rank in the middle of 8, 64 rows each
  };
  for (const Case& c : {Case{"0,0", 0}, Case{"1,0", 1}, Case{"63,0", 1}, Case{"64,0", 1}, Case{"65,0", 2},
                        Case{"128,0", 2}, Case{"129,0", 3}, Case{"1,1", 2}, Case{"65,1", 3}, Case{"inf,0", 4}}) {
    const std::string text = std::string("b=1 s_q=512 h_q=1 d=8 mask=none window=") + c.window;
    const Program program = forward(text, ShardKind::contiguous, {ScheduleKind::p2p, 0, 0}, 4, 8);
    int hops = 0;
    for (const Exchange& x : program.exchanges) hops += x.receives.empty() ? 0 : 1;
    EXPECT_EQ(hops, c.hops) << c.window;
  }
}

TEST(Slices, GrowWithTheRunsOfAShardAndNotWithTheirPairs) {
  // Chunks of one token: each of a rank's 4,000 query runs meets up to 16,000 key runs, all but one of them whole.
  const Problem problem = parse_problem("s_q=16000 h_q=1 d=8 mask=causal");
  const Shard shard = make_shard(problem, ShardKind::balanced, 4, 1);
  ASSERT_GT(shard.q.runs(1).size(), 1000U);
  for (const ScheduleKind kind : {ScheduleKind::p2p, ScheduleKind::all_gather}) {
    const Program program = make_program(problem, shard, {kind, 0, 0}, 1, false);
    double pairs = 0, wanted = 0;
    for (const Step& step : program.steps) {
      const auto* attend = std::get_if<Attend>(&step);
      if (attend == nullptr) continue;
      EXPECT_LE(attend->slices.size(), 2 * shard.q.runs(1).size()) << to_string(kind);
      pairs += count_pairs(attend->slices);
    }
    for (const std::int64_t token : shard.q.tokens_of(1)) wanted += static_cast<double>(token) + 1;
    EXPECT_EQ(pairs, wanted) << to_string(kind);
  }
}

TEST(P2p, OwnGradientsAreWrittenWhereNothingHasArrivedBefore) {
  const Problem problem = parse_problem("s_q=64 h_q=2 d=16 mask=causal grad=1");
  for (const int ranks : {2, 3}) {
    const Program program = make_program(problem, make_shard(problem, ShardKind::dual_chunk, ranks), {}, 0, true);
    bool any_fill = false, own_writes = false;
    for (const Step& step : program.steps) {
      any_fill = any_fill || std::holds_alternative<Fill>(step);
      if (const auto* call = std::get_if<AttendBackward>(&step)) own_writes = call->init_dkv;  // own keys come last
    }
    EXPECT_EQ(own_writes, ranks == 2);
    EXPECT_EQ(any_fill, ranks == 3);
  }
}

TEST(P2p, ZigzagSendsOnlyTheHalfThatIsSeen) {
  // Causal: lower ranks' late chunks are in the future of everything here, so only their early chunk is sent.
  const Program program =
      forward("b=1 s_q=64 h_q=1 d=8 mask=causal", ShardKind::dual_chunk, {ScheduleKind::p2p, 0, 0}, 3, 4);
  for (const Exchange& x : program.exchanges) {
    std::int64_t rows = 0;
    for (const Transfer& t : x.receives) rows += t.region.rows;
    EXPECT_EQ(rows, 2 * 8) << x.label;  // K and V
  }
}

TEST(AllGather, JoinsTheKeysOfAZigzagToOneSliceAChunk) {
  const Program program =
      forward("b=1 s_q=64 h_q=2 h_kv=1 d=8 mask=causal", ShardKind::dual_chunk, {ScheduleKind::all_gather, 0, 1}, 1, 4);
  int attends = 0;
  for (const Step& step : program.steps) {
    const auto* attend = std::get_if<Attend>(&step);
    if (attend == nullptr) continue;
    ++attends;
    EXPECT_TRUE(attend->init && attend->last);
    ASSERT_EQ(attend->slices.size(), 2U);  // rows 8..15 and 48..55
    EXPECT_EQ(attend->slices[0].k_len, 16);
    EXPECT_EQ(attend->slices[1].k_len, 56);
  }
  EXPECT_EQ(attends, 1);
}

TEST(A2a, MovesWholeSequencesOfAShareOfTheHeads) {
  const std::string text = "b=1 s_q=64 h_q=8 h_kv=4 d=16 mask=none";
  const Program program = forward(text, ShardKind::contiguous, {ScheduleKind::a2a, 0, 2}, 0, 4);
  const Cost c = cost(parse_problem(text), program);
  EXPECT_EQ(c.pairs, 64 * 64 * 2);  // 2 of 8 heads
  // Q and O of 48 rows × 2 heads (O back for 16 rows × 6 heads), K and V of 48 rows × 1 head, LSE fp32.
  EXPECT_EQ(c.bytes_received, 48 * 2 * 16 * 2 + 2 * 48 * 1 * 16 * 2 + 16 * 6 * (16 * 2 + 4));
}

TEST(A2a, WhatTravelsOfASmallHeadGroupLiesDense) {
  const std::string text = "b=2 s_q=64 h_q=16 h_kv=16 d=16 mask=causal grad=1";  // groups of 1, 2, 2, 2 and 1 head
  for (const bool backward : {false, true}) {
    const Problem problem = parse_problem(text);
    const Program program =
        make_program(problem, make_shard(problem, ShardKind::dual_chunk, 2), {ScheduleKind::a2a}, 0, backward);
    std::int64_t fewest = 16;
    for (const Exchange& exchange : program.exchanges) {
      for (const auto* transfers : {&exchange.sends, &exchange.receives}) {
        for (const Transfer& transfer : *transfers) {
          const Buffer& buffer = program.buffer(transfer.region);
          if (buffer.binding != Binding::workspace || buffer.dim == 1) continue;
          EXPECT_EQ(transfer.region.packed_heads, transfer.region.heads) << exchange.label;
          fewest = std::min(fewest, transfer.region.heads);
        }
      }
    }
    EXPECT_EQ(fewest, 1);
  }
}

TEST(Team, SharesHeadsAndReplicatesKeys) {
  const Problem problem = parse_problem("b=1 s_q=8 h_q=28 h_kv=7 d=8 mask=none");
  const Team team(problem, {ScheduleKind::a2a, 0, 1}, 2);
  EXPECT_EQ(team.q_heads(0).count, 14);
  EXPECT_EQ(team.kv_heads(team.q_heads(0)).count, 4);
  EXPECT_EQ(team.kv_heads(team.q_heads(1)).begin, 3);  // KV head 3 is read by both
  EXPECT_FALSE(team.gradients_are_whole());
  EXPECT_TRUE(Team(parse_problem("b=1 s_q=8 h_q=8 h_kv=4 d=8"), {ScheduleKind::a2a, 0, 1}, 4).gradients_are_whole());
}

TEST(Team, TheFirstAndLastHeadGroupAreSmaller) {
  struct Case {
    int heads;
    std::vector<int> groups;
  };
  for (const Case& c : {Case{1, {1}}, Case{2, {1, 1}}, Case{3, {1, 1, 1}}, Case{4, {1, 1, 1, 1}}, Case{6, {1, 2, 1, 2}},
                        Case{8, {1, 2, 2, 2, 1}}, Case{16, {2, 4, 4, 4, 2}}, Case{32, {4, 8, 8, 8, 4}}}) {
    const Problem problem = parse_problem(fmt::format("s_q=64 h_q={} d=8", c.heads));
    std::vector<int> counts;
    const Team team(problem, {ScheduleKind::all_gather, 0, 0}, 2);
    for (int group = 0; group < team.groups(); ++group) counts.push_back(team.item(0, group, 0).kv.count);
    EXPECT_EQ(counts, c.groups) << c.heads;
  }
}

TEST(Team, InnerMustDivideTheRanks) {
  const Problem problem = parse_problem("b=1 s_q=8 h_q=8 d=8");
  EXPECT_EQ(inner_ranks(problem, {ScheduleKind::a2a_p2p, 0, 0}, 4), 2);
  EXPECT_EQ(inner_ranks(problem, {ScheduleKind::a2a_p2p, 0, 0}, 8), 2);
  EXPECT_EQ(inner_ranks(problem, {ScheduleKind::a2a_p2p, 8, 0}, 8), 8);
  EXPECT_EQ(inner_ranks(problem, {ScheduleKind::a2a_p2p, 1, 0}, 8), 1);
  EXPECT_ERROR((void)inner_ranks(problem, {ScheduleKind::a2a_p2p, 3, 0}, 8), ErrorKind::bad_input,
               "inner=3 does not divide 8 ranks");
}

TEST(Segments, AStridedShardSeesTheSameBand) {
  // 12 tokens on 3 ranks: rank 0 has 0 3 6 9, rank 1 has 1 4 7 10. Causal: token 3 (row 1) sees token 1 (row 0) only.
  const Problem problem = parse_problem("b=1 s_q=12 h_q=1 d=8 mask=causal");
  const Shard shard = make_shard(problem, ShardKind::striped, 3);
  const auto slices = intersect(mask_slices(problem), local_segments(shard.q, 0), local_segments(shard.k, 1));
  std::int64_t pairs = 0;
  for (const Slice& slice : slices) pairs += visible_pairs(slice);
  EXPECT_EQ(pairs, 0 + 1 + 2 + 3);
}

TEST(Names, RoundTripAndRefuse) {
  for (const auto kind : kScheduleKinds) {
    EXPECT_EQ(parse_schedule_kind(to_string(kind)), kind);
  }
  EXPECT_ERROR((void)parse_schedule_kind("ring"), ErrorKind::bad_input, "allowed: auto, p2p, all_gather, a2a, a2a_p2p");
}

TEST(Print, NamesEveryStep) {
  const std::string text = to_text(forward("b=1 s_q=64 s_k=40 h_q=4 d=8 mask=causal_bottom_right sink=zero max_logit=1",
                                           ShardKind::dual_chunk, {ScheduleKind::a2a_p2p, 2, 0}, 1, 4));
  for (const char* word : {"post", "await", "attend", "finish", "fill sink", "row max", "convert"}) {
    EXPECT_NE(text.find(word), std::string::npos) << word << "\n" << text;
  }
}

}  // namespace
}  // namespace rotunda
