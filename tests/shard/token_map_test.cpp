#include <gtest/gtest.h>

#include "base/half.hpp"
#include "rotunda/shard.hpp"
#include "support/error_test.hpp"

namespace rotunda {
namespace {

using Runs = std::vector<std::vector<Run>>;

TEST(TokenMap, KnowsRowsAndTokens) {
  const TokenMap map(7, 1, {{{0, 2}, {5, 2}}, {{2, 3}}, {}});
  EXPECT_EQ(map.ranks(), 3);
  EXPECT_EQ(map.rows(0), 4);
  EXPECT_EQ(map.rows(2), 0);
  EXPECT_EQ(map.tokens_of(0), (std::vector<std::int64_t>{0, 1, 5, 6}));
  EXPECT_EQ(map.tokens_of(2), std::vector<std::int64_t>{});
}

TEST(TokenMap, RefusesWhatIsNoCover) {
  const auto make = [](std::int64_t tokens, std::int64_t stride, const Runs& runs) {
    return TokenMap(tokens, stride, runs);
  };
  EXPECT_ERROR((void)(make(7, 1, {{{0, 2}}, {{2, 3}}})), ErrorKind::internal, "cover 5 tokens of 7");
  EXPECT_ERROR((void)(make(5, 1, {{{0, 3}}, {{2, 3}}})), ErrorKind::internal, "starts at token 2, not at 3");
  EXPECT_ERROR((void)(make(5, 1, {{{0, 2}}, {{3, 2}}})), ErrorKind::internal, "starts at token 3, not at 2");
  EXPECT_ERROR((void)(make(5, 1, {{{0, 2}}, {{2, 4}}})), ErrorKind::internal, "beyond token 5");
  EXPECT_ERROR((void)(make(5, 1, {{{3, 2}, {0, 3}}})), ErrorKind::internal, "follows token 4");
  EXPECT_ERROR((void)(make(5, 1, {{{0, 5}, {5, 0}}})), ErrorKind::internal, "run of 0 tokens");
  EXPECT_ERROR((void)(make(5, 1, {{{-1, 6}}})), ErrorKind::internal, "at -1");
  EXPECT_ERROR((void)(make(5, 2, {{{0, 3}}, {{1, 3}}})), ErrorKind::internal, "beyond token 5");
  EXPECT_ERROR((void)(make(5, 2, {{{0, 3}}, {{3, 1}}})), ErrorKind::internal, "starts at token 3, not at 1");
  EXPECT_ERROR((void)(make(5, 2, {{{0, 3}}})), ErrorKind::internal, "cover 3 tokens of 5");
  EXPECT_ERROR((void)(make(5, 0, {{{0, 5}}})), ErrorKind::internal, "stride 0");
  EXPECT_NO_THROW((void)(make(5, 2, {{{0, 3}}, {{1, 2}}})));
  EXPECT_NO_THROW((void)(make(0, 4, {{}, {}})));
}

TEST(PositionIds, RestartInEachDocument) {
  const Problem problem = parse_problem("layout=thd h_q=1 d=8 cu_q=0,3,3,8 mask=causal");
  const TokenMap map(8, 1, {{{1, 3}, {6, 2}}, {{0, 1}, {4, 2}}});
  EXPECT_EQ(position_ids(problem, map, 0), (std::vector<std::int64_t>{1, 2, 0, 3, 4}));
  EXPECT_EQ(position_ids(problem, map, 1), (std::vector<std::int64_t>{0, 1, 2}));
}

TEST(PositionIds, CountThroughADenseSequence) {
  const Problem problem = parse_problem("s_q=7 h_q=1 d=8");
  EXPECT_EQ(position_ids(problem, make_shard(problem, ShardKind::striped, 3).q, 1), (std::vector<std::int64_t>{1, 4}));
  EXPECT_EQ(position_ids(problem, make_shard(problem, ShardKind::dual_chunk, 2).q, 0),
            (std::vector<std::int64_t>{0, 1, 6}));
}

constexpr std::int64_t kBatch = 2, kTokens = 23, kHeads = 3, kDim = 4;

/// scatter to every rank, gather back: the same, in every layout on either side.
void check_round_trip(ShardKind kind, Layout whole_layout, Layout local_layout) {
  const Problem problem = parse_problem("b=2 s_q=23 h_q=3 d=4 mask=causal");
  const TokenMap map = make_shard(problem, kind, 4).q;
  std::vector<float> whole(kBatch * kTokens * kHeads * kDim), back(whole.size(), -1.0F);
  const auto view = [&](std::vector<float>& memory, Layout layout, std::int64_t rows) {
    return make_view(memory.data(), DType::fp32, layout, kBatch, rows, kHeads, kDim);
  };
  const TensorView from = view(whole, whole_layout, kTokens);
  for (std::int64_t b = 0; b < kBatch; ++b)  // value: the token, batch and head
    for (std::int64_t row = 0; row < kTokens; ++row)
      for (std::int64_t head = 0; head < kHeads; ++head)
        for (std::int64_t dim = 0; dim < kDim; ++dim)
          from.at<float>(b, row, head)[dim] =
              static_cast<float>(1000 * b + 10 * row + 3 * head) + 0.125F * static_cast<float>(dim);
  for (int rank = 0; rank < 4; ++rank) {
    std::vector<float> memory(static_cast<std::size_t>(kBatch * map.rows(rank) * kHeads * kDim), -2.0F);
    const TensorView local = view(memory, local_layout, map.rows(rank));
    scatter(map, rank, from, local);
    const auto tokens = map.tokens_of(rank);
    for (std::size_t row = 0; row < tokens.size(); ++row) {
      EXPECT_EQ(local.at<float>(1, static_cast<std::int64_t>(row), 2)[3],
                static_cast<float>(1006 + 10 * tokens[row]) + 0.375F);
    }
    gather(map, rank, local, view(back, whole_layout, kTokens));
  }
  EXPECT_EQ(back, whole);
}

TEST(ScatterGather, AreInverseInEveryLayout) {
  for (const ShardKind kind : {ShardKind::contiguous, ShardKind::dual_chunk, ShardKind::striped, ShardKind::balanced}) {
    for (const Layout whole : {Layout::bshd, Layout::sbhd, Layout::bhsd}) {
      for (const Layout local : {Layout::bshd, Layout::sbhd, Layout::bhsd}) check_round_trip(kind, whole, local);
    }
  }
}

TEST(ScatterGather, RowStatisticsAndSixteenBits) {
  const TokenMap map(4, 1, {{{0, 1}, {3, 1}}, {{1, 2}}});
  std::vector<float> lse{0, 1, 2, 3, 10, 11, 12, 13}, local(4);
  scatter(map, 0, make_row_view(lse.data(), 1, 4, 2), make_row_view(local.data(), 1, 2, 2));
  EXPECT_EQ(local, (std::vector<float>{0, 3, 10, 13}));
  std::vector<std::uint16_t> whole{7, 8, 9, 10}, part(2), back(4);
  const auto view = [](std::vector<std::uint16_t>& memory, std::int64_t rows) {
    return make_view(memory.data(), DType::bf16, Layout::thd, 1, rows, 1, 1);
  };
  for (const int rank : {0, 1}) {
    scatter(map, rank, view(whole, 4), view(part, 2));
    gather(map, rank, view(part, 2), view(back, 4));
  }
  EXPECT_EQ(back, whole);
}

TEST(ScatterGather, RefuseWrongViews) {
  const TokenMap map(4, 1, {{{0, 1}}, {{1, 3}}});
  std::vector<float> memory(64);
  const auto view = [&](std::int64_t b, std::int64_t rows, std::int64_t h, std::int64_t d, DType dtype = DType::fp32) {
    return make_view(memory.data(), dtype, Layout::bshd, b, rows, h, d);
  };
  EXPECT_ERROR(scatter(map, 0, view(1, 5, 1, 2), view(1, 1, 1, 2)), ErrorKind::bad_input, "fp32[1, 5, 1, 2]");
  EXPECT_ERROR(scatter(map, 1, view(1, 4, 1, 2), view(1, 2, 1, 2)), ErrorKind::bad_input, "must be fp32[1, 3, 1, 2]");
  EXPECT_ERROR(gather(map, 1, view(1, 3, 2, 2), view(1, 4, 1, 2)), ErrorKind::bad_input, "local tensor of rank 1");
  EXPECT_ERROR(gather(map, 1, view(1, 3, 1, 2, DType::bf16), view(1, 4, 1, 2)), ErrorKind::bad_input, "bf16");
  EXPECT_ERROR(gather(map, 2, view(1, 3, 1, 2), view(1, 4, 1, 2)), ErrorKind::bad_input, "rank 2 of a map of 2 ranks");
  TensorView nowhere = view(1, 4, 1, 2);
  nowhere.data = nullptr;
  EXPECT_ERROR(scatter(map, 0, nowhere, view(1, 1, 1, 2)), ErrorKind::bad_input, "fp32[1, 4, 1, 2] has no memory");
  const Problem problem = parse_problem("s_q=4 h_q=1 d=1");
  EXPECT_ERROR((void)position_ids(problem, map, 2), ErrorKind::bad_input, "rank 2 of a map of 2 ranks");
}

}  // namespace
}  // namespace rotunda
