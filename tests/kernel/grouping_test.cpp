// The calls see what the slices see, each pair once; and common lists become as few calls as they should.
#include "kernel/grouping.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <tuple>
#include <variant>

#include "rotunda/schedule.hpp"
#include "support/random_problem.hpp"
#include "support/visible.hpp"

namespace rotunda {
namespace {

using Pairs = std::map<std::tuple<std::int64_t, std::int64_t, std::int64_t>, int>;  // (batch, row, key): how often

Pairs pairs_of(std::span<const Slice> slices) {
  Pairs pairs;
  for (const Slice& s : slices) {
    for (std::int64_t i = s.q_begin; i < s.q_begin + s.q_len; ++i) {
      for (std::int64_t j = s.k_begin; j < s.k_begin + s.k_len; ++j) {
        if (testing::slice_sees(s, i, j)) ++pairs[{s.batch, i, j}];
      }
    }
  }
  return pairs;
}

Pairs pairs_of(const std::vector<GroupedCall>& calls) {
  Pairs pairs;
  for (const GroupedCall& call : calls) {
    for (const Sequence& s : call.sequences) {
      const std::int64_t shift = call.mask.align == Align::top_left ? 0 : s.k_len - s.q_len;
      for (std::int64_t i = 0; i < s.q_len; ++i) {
        for (std::int64_t j = 0; j < s.k_len; ++j) {
          const std::int64_t distance = j - i - shift;
          const bool left = call.mask.left == kInfinity || distance >= -call.mask.left;
          const bool right = call.mask.right == kInfinity || distance <= call.mask.right;
          if (left && right) ++pairs[{s.batch, s.q_begin + i, s.k_begin + j}];
        }
      }
    }
  }
  return pairs;
}

/// Rows of a side by call: none twice within a call, and the flags say what is.
void check_rows(const std::vector<GroupedCall>& calls, std::int64_t batches, std::int64_t rows, Side side) {
  std::map<std::pair<std::int64_t, std::int64_t>, int> touched;
  for (const GroupedCall& call : calls) {
    std::map<std::pair<std::int64_t, std::int64_t>, int> own;
    for (const Sequence& s : call.sequences) {
      const RowSpan span = rows_of(s, side);
      ASSERT_GT(span.len, 0);
      for (std::int64_t i = span.begin; i < span.begin + span.len; ++i) ++own[{span.batch, i}];
    }
    bool shared = false;
    for (const auto& [row, count] : own) {
      EXPECT_EQ(count, 1) << describe(call);
      shared |= touched.contains(row);
      touched[row] = 1;
    }
    EXPECT_EQ(side == Side::query ? call.shares_rows : call.shares_keys, shared) << describe(call);
  }
  for (const RowSpan& gap : untouched_rows(calls, batches, rows, side)) {
    EXPECT_GT(gap.len, 0);
    for (std::int64_t i = gap.begin; i < gap.begin + gap.len; ++i) {
      EXPECT_TRUE(touched.emplace(std::pair(gap.batch, i), 2).second);
    }
  }
  EXPECT_EQ(static_cast<std::int64_t>(touched.size()), batches * rows);
}

void check_forms(const std::vector<GroupedCall>& calls) {
  for (const GroupedCall& call : calls) {
    EXPECT_GE(call.mask.left, 0);
    EXPECT_GE(call.mask.right, 0);
    if (call.form == CallForm::ragged) continue;
    for (std::size_t i = 0; i < call.sequences.size(); ++i) {
      const auto n = static_cast<std::int64_t>(i);
      const Sequence &first = call.sequences.front(), &s = call.sequences[i];
      EXPECT_EQ(s.batch, first.batch + n * call.step.batch);
      EXPECT_EQ(s.q_begin, first.q_begin + n * call.step.q);
      EXPECT_EQ(s.k_begin, first.k_begin + n * call.step.k);
      if (call.form == CallForm::dense) {
        EXPECT_EQ(std::tie(s.q_len, s.k_len), std::tie(first.q_len, first.k_len));
      } else {
        EXPECT_EQ(std::tie(call.step.q, call.step.k), std::make_tuple(0, 0));
      }
    }
  }
}

void check(std::span<const Slice> slices, std::int64_t batches, std::int64_t rows_q, std::int64_t rows_k) {
  const Grouping grouping = group_slices(slices, 1000);
  ASSERT_FALSE(grouping.refusal) << *grouping.refusal;
  EXPECT_EQ(pairs_of(grouping.calls), pairs_of(slices));
  check_rows(grouping.calls, batches, rows_q, Side::query);
  check_rows(grouping.calls, batches, rows_k, Side::key);
  check_forms(grouping.calls);
  EXPECT_LE(grouping.calls.size(), slices.size());
}

TEST(Grouping, SeesWhatRandomProblemsSee) {
  for (std::uint64_t seed = 1; seed <= 1500; ++seed) {
    const Problem problem = testing::random_problem(seed, {.max_work = 3000});
    SCOPED_TRACE(::testing::Message() << "seed " << seed << ": " << to_text(problem));
    check(mask_slices(problem), problem.batches(), problem.s_q, problem.s_k);
    if (::testing::Test::HasFailure()) return;
  }
}

TEST(Grouping, SeesWhatProgramsSee) {
  testing::Random random(5);
  for (std::uint64_t seed = 1; seed <= 400; ++seed) {
    const Problem problem = testing::random_problem(seed, {.max_work = 2000, .slices = false});
    const int ranks = static_cast<int>(random.between(1, 5));
    const auto kind = random.one_of({ShardKind::contiguous, ShardKind::dual_chunk, ShardKind::dual_chunk_doc});
    const auto schedule = random.one_of({ScheduleKind::p2p, ScheduleKind::all_gather});
    const Shard shard = make_shard(problem, kind, ranks);
    for (int rank = 0; rank < ranks; ++rank) {
      const Program program = make_program(problem, shard, {.kind = schedule}, rank, false);
      for (const Step& step : program.steps) {
        const auto* attend = std::get_if<Attend>(&step);
        if (attend == nullptr) continue;
        SCOPED_TRACE(::testing::Message() << "seed " << seed << " rank " << rank << ": " << to_text(problem));
        check(attend->slices, problem.batches(), attend->q.rows, attend->k.rows);
        if (::testing::Test::HasFailure()) return;
      }
    }
  }
}

/// A slice whose positions are its rows.
Slice rectangle(std::int64_t q, std::int64_t q_len, std::int64_t k, std::int64_t k_len, std::int64_t left = kInfinity,
                std::int64_t right = kInfinity) {
  return {
      .q_begin = q, .q_len = q_len, .k_begin = k, .k_len = k_len, .q_pos = q, .k_pos = k, .left = left, .right = right};
}

std::vector<GroupedCall> calls_of(const std::vector<Slice>& slices) {
  const Grouping grouping = group_slices(slices);
  EXPECT_FALSE(grouping.refusal);
  EXPECT_EQ(pairs_of(grouping.calls), pairs_of(slices));
  return grouping.calls;
}

TEST(Grouping, ZigzagLocalStepIsOneCausalCall) {
  const auto calls =
      calls_of({rectangle(0, 8, 0, 8, kInfinity, 0), rectangle(8, 8, 0, 8), rectangle(8, 8, 8, 8, kInfinity, 0)});
  ASSERT_EQ(calls.size(), 1U);
  EXPECT_EQ(calls[0].mask, (CornerMask{Align::top_left, kInfinity, 0}));
  EXPECT_EQ(calls[0].sequences, (std::vector<Sequence>{{0, 0, 16, 0, 16}}));
  EXPECT_EQ(calls[0].form, CallForm::dense);
}

TEST(Grouping, ZigzagRemoteStepsAreOneFullCall) {
  // Keys of an earlier rank: both chunks see its first. Of a later one: the second chunk sees both.
  auto calls = calls_of({rectangle(0, 8, 0, 8), rectangle(8, 8, 0, 8)});
  ASSERT_EQ(calls.size(), 1U);
  EXPECT_EQ(calls[0].mask, CornerMask{});
  EXPECT_EQ(calls[0].sequences, (std::vector<Sequence>{{0, 0, 16, 0, 8}}));
  calls = calls_of({rectangle(8, 8, 0, 8), rectangle(8, 8, 8, 8)});
  ASSERT_EQ(calls.size(), 1U);
  EXPECT_EQ(calls[0].sequences, (std::vector<Sequence>{{0, 8, 8, 0, 16}}));
  EXPECT_EQ(untouched_rows(calls, 1, 16, Side::query), (std::vector<RowSpan>{{0, 0, 8}}));
}

TEST(Grouping, WindowOnTheRingIsCutToWhatItSees) {
  // Rows 8..15 against keys 0..7 of the rank before, window (3, 0): three rows see keys 5..7.
  const auto calls = calls_of({rectangle(8, 8, 0, 8, 3, 0)});
  ASSERT_EQ(calls.size(), 1U);
  EXPECT_EQ(calls[0].sequences, (std::vector<Sequence>{{0, 8, 3, 5, 3}}));
  EXPECT_EQ(calls[0].mask, (CornerMask{Align::top_left, 0, kInfinity}));
}

TEST(Grouping, WindowedZigzagIsOneCall) {
  const auto calls = calls_of({rectangle(0, 8, 0, 8, 3, 0), rectangle(8, 8, 0, 8, 3, 0), rectangle(8, 8, 8, 8, 3, 0)});
  ASSERT_EQ(calls.size(), 1U);
  EXPECT_EQ(calls[0].mask, (CornerMask{Align::top_left, 3, 0}));
}

TEST(Grouping, PackedDocumentsAreOneRaggedCall) {
  auto calls = calls_of({rectangle(0, 5, 0, 5, kInfinity, 0), rectangle(5, 9, 5, 9, kInfinity, 0),
                         rectangle(16, 2, 16, 2, kInfinity, 0)});
  ASSERT_EQ(calls.size(), 1U);
  EXPECT_EQ(calls[0].form, CallForm::ragged);
  EXPECT_EQ(calls[0].mask, (CornerMask{Align::top_left, kInfinity, 0}));
  EXPECT_EQ(calls[0].longest(Side::query), 9);
  // Of one length at one distance they are a batch.
  calls = calls_of({rectangle(0, 5, 0, 5, kInfinity, 0), rectangle(8, 5, 8, 5, kInfinity, 0),
                    rectangle(16, 5, 16, 5, kInfinity, 0)});
  ASSERT_EQ(calls.size(), 1U);
  EXPECT_EQ(calls[0].form, CallForm::dense);
  EXPECT_EQ(calls[0].step, (SequenceStep{0, 8, 8}));
}

TEST(Grouping, DocumentsShorterThanTheWindowJoinTheOthers) {
  const auto calls =
      calls_of({rectangle(0, 3, 0, 3, 4, 0), rectangle(3, 9, 3, 9, 4, 0), rectangle(12, 1, 12, 1, 4, 0)});
  ASSERT_EQ(calls.size(), 1U);
  EXPECT_EQ(calls[0].mask, (CornerMask{Align::top_left, 4, 0}));
}

TEST(Grouping, BottomRightOfDifferentLengthsIsOneCall) {
  std::vector<Slice> slices = {rectangle(0, 4, 0, 9, kInfinity, 0), rectangle(4, 6, 9, 7, kInfinity, 0)};
  slices[0].q_pos = 5;
  slices[1].q_pos = 1;
  slices[1].k_pos = 0;
  const auto calls = calls_of(slices);
  ASSERT_EQ(calls.size(), 1U);
  EXPECT_EQ(calls[0].mask, (CornerMask{Align::bottom_right, kInfinity, 0}));
  EXPECT_EQ(calls[0].form, CallForm::ragged);
}

TEST(Grouping, BatchEntriesAreOneCall) {
  Problem problem = parse_problem("b=3 s_q=16 h_q=1 d=8 mask=causal");
  auto calls = calls_of(mask_slices(problem));
  ASSERT_EQ(calls.size(), 1U);
  EXPECT_EQ(calls[0].form, CallForm::dense);
  EXPECT_EQ(calls[0].step, (SequenceStep{1, 0, 0}));
  problem = parse_problem("b=3 s_q=16 h_q=1 d=8 mask=causal lens_q=16,9,4 lens_k=16,9,4");
  calls = calls_of(mask_slices(problem));
  ASSERT_EQ(calls.size(), 1U);
  EXPECT_EQ(calls[0].form, CallForm::padded);
}

TEST(Grouping, PrefixIsMerged) {
  const Problem problem = parse_problem("s_q=32 h_q=1 d=8 mask=causal prefix=6");
  const auto calls = calls_of(mask_slices(problem));
  ASSERT_EQ(calls.size(), 2U);
  EXPECT_TRUE(untouched_rows(calls, 1, 32, Side::query).empty());
}

TEST(Grouping, ChunksAreOneBatch) {
  const Problem problem = parse_problem("s_q=64 h_q=1 d=8 mask=causal chunk=16");
  const auto calls = calls_of(mask_slices(problem));
  ASSERT_EQ(calls.size(), 1U);
  EXPECT_EQ(calls[0].sequences.size(), 4U);
  EXPECT_EQ(calls[0].form, CallForm::dense);
}

TEST(Grouping, TooManyCallsAreRefusedByNumber) {
  std::vector<Slice> slices;
  for (std::int64_t i = 0; i < 20; ++i) slices.push_back(rectangle(0, 1, 2 * i, 1));
  const Grouping grouping = group_slices(slices);
  ASSERT_TRUE(grouping.refusal);
  EXPECT_EQ(*grouping.refusal, "its slices need 20 calls; at most 16 are made");
  EXPECT_TRUE(grouping.calls.empty());
}

TEST(Grouping, NothingVisibleIsNoCall) {
  EXPECT_TRUE(calls_of({}).empty());
  EXPECT_TRUE(calls_of({rectangle(8, 4, 0, 4, 2, kInfinity)}).empty());
}

}  // namespace
}  // namespace rotunda
