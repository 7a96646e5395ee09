#include <gtest/gtest.h>

#include "cli/drawing.hpp"
#include "cli/picture.hpp"
#include "cli/simulate.hpp"
#include "support/error_test.hpp"

namespace rotunda::cli {
namespace {

std::vector<Program> programs(const Problem& problem, const Shard& shard, ScheduleKind kind, bool backward) {
  std::vector<Program> all;
  for (int rank = 0; rank < shard.q.ranks(); ++rank)
    all.push_back(make_program(problem, shard, {kind, 0, 0}, rank, backward));
  return all;
}

TEST(Picture, ShowsTheZigzag) {
  const Problem problem = parse_problem("s_q=64 h_q=2 d=8 mask=causal");
  const std::string text = shard_picture(problem, make_shard(problem, ShardKind::dual_chunk, 2));
  EXPECT_NE(text.find("0000000000000000"
                      "1111111111111111"
                      "1111111111111111"
                      "0000000000000000"),
            std::string::npos)
      << text;
  EXPECT_NE(text.find("rank 0: 32 rows, tokens 0..15, 48..63"), std::string::npos) << text;
}

TEST(Picture, ShowsTheMask) {
  const Problem problem = parse_problem("s_q=4 h_q=2 d=8 mask=causal");
  const std::string text = mask_picture(problem, make_shard(problem, ShardKind::contiguous, 2));
  EXPECT_NE(text.find("  0...\n  00..\n  111.\n  1111\n"), std::string::npos) << text;
}

TEST(Picture, TakesNoTimeOrMemoryATokenHowManySoever) {
  for (const char* text :
       {"s_q=1000000000000 h_q=2 d=8 mask=causal", "s_q=4000000000000000000 h_q=1 d=1 mask=causal"}) {
    const Problem problem = parse_problem(text);
    for (const ShardKind kind : {ShardKind::dual_chunk, ShardKind::striped}) {
      const Shard shard = make_shard(problem, kind, 2);
      const bool mixed = kind == ShardKind::striped;  // every cell holds both ranks' tokens
      EXPECT_NE(shard_picture(problem, shard).find(mixed ? "****************" : "0000000000000000111111"),
                std::string::npos);
      EXPECT_NE(mask_picture(problem, shard).find(mixed ? "  ***..." : "  000..."), std::string::npos)
          << mask_picture(problem, shard);
    }
  }
}

TEST(Simulation, RefusesMoreTokensThanItCanFollow) {
  const Problem problem = parse_problem("s_q=1000000000000 h_q=2 d=8 mask=causal");
  const Shard shard = make_shard(problem, ShardKind::contiguous, 2);
  const auto all = programs(problem, shard, ScheduleKind::p2p, false);
  EXPECT_ERROR((void)simulate(problem, shard, all, Machine{}, 64), ErrorKind::unsupported, "allowed: 134,217,728");
}

TEST(Picture, NoTokensIsNoPicture) {
  const Problem problem = parse_problem("s_q=0 h_q=2 d=8");
  const Shard shard = make_shard(problem, ShardKind::contiguous, 2);
  EXPECT_EQ(mask_picture(problem, shard), "");
  EXPECT_NE(shard_picture(problem, shard).find("none"), std::string::npos);
}

/// Every visible cell is computed by somebody, no other by anybody, whatever the schedule, forward and backward.
TEST(Simulation, EveryVisibleCellIsComputed) {
  for (const char* text : {"s_q=29 h_q=4 h_kv=2 d=8 mask=causal", "s_q=32 h_q=4 d=8 window=5,2",
                           "layout=thd cu_q=0,7,19,30 used_q=5,12,9 h_q=4 d=8 mask=causal",
                           "s_q=9 s_k=31 h_q=4 d=8 mask=causal_bottom_right"}) {
    const Problem problem = parse_problem(text);
    for (const ScheduleKind kind : kScheduleKinds) {
      for (const bool backward : {false, true}) {
        const Shard shard = make_shard(problem, ShardKind::dual_chunk, 4);
        const Simulation done = simulate(problem, shard, programs(problem, shard, kind, backward), Machine{}, 64);
        const auto mask = mask_cells(problem, done);
        std::int64_t pairs = 0;
        for (const RankView& view : done.ranks) pairs += view.pairs;
        std::int64_t wanted = 0;
        for (const Slice& slice : mask_slices(problem)) wanted += problem.h_q * visible_pairs(slice);
        EXPECT_EQ(pairs, wanted) << text << " " << to_string(kind);
        for (std::size_t cell = 0; cell < mask.size(); ++cell) {
          bool computed = false;
          for (const RankView& view : done.ranks) computed = computed || view.cells[cell] != 0;
          ASSERT_EQ(computed, mask[cell] != 0)
              << text << " " << to_string(kind) << " backward " << backward << " cell " << cell;
        }
        EXPECT_GT(done.seconds, 0);
      }
    }
  }
}

TEST(Simulation, ExchangesHideWhereTheMachineOverlaps) {
  const Problem problem = parse_problem("s_q=256 h_q=4 d=64 mask=causal");
  const Shard shard = make_shard(problem, ShardKind::dual_chunk, 4);
  const auto all = programs(problem, shard, ScheduleKind::p2p, false);
  const Machine slow{"slow", 1e9, 1e9, 1e-6, false}, overlapping{"fast", 1e9, 1e9, 1e-6, true};
  EXPECT_LT(simulate(problem, shard, all, overlapping, 16).seconds, simulate(problem, shard, all, slow, 16).seconds);
}

TEST(Drawing, HasAPanelAndALaneForEveryRank) {
  const Problem problem = parse_problem("s_q=64 h_q=4 d=8 mask=causal grad=1");
  std::vector<std::shared_ptr<const Plan>> plans;
  PlanOptions options;
  options.schedule = ScheduleKind::p2p;
  for (int rank = 0; rank < 3; ++rank) plans.push_back(make_plan(problem, options, rank, 3));
  const std::string svg = draw_plan(plans);
  EXPECT_EQ(svg.find("<svg "), 0U);
  EXPECT_EQ(svg.rfind("</svg>\n"), svg.size() - 7);
  EXPECT_NE(svg.find("Backward, p2p"), std::string::npos);
  for (const char* rank : {"rank 0:", "rank 1:", "rank 2:"}) EXPECT_NE(svg.find(rank), std::string::npos);
  EXPECT_EQ(svg.find("http", 40), std::string::npos) << "self-contained";
}

TEST(Drawing, SurvivesNoTokens) {
  const Problem problem = parse_problem("layout=thd cu_q=0 h_q=4 d=8 grad=1");
  EXPECT_NE(draw_plan({make_plan(problem, {}, 0, 2), make_plan(problem, {}, 1, 2)}).find("</svg>"), std::string::npos);
}

}  // namespace
}  // namespace rotunda::cli
