// Which of a rank's rows are closed.
#include "schedule/parts.hpp"

#include <gtest/gtest.h>

namespace rotunda {
namespace {

Slice rectangle(std::int64_t q, std::int64_t q_len, std::int64_t k, std::int64_t k_len) {
  Slice slice;
  slice.q_begin = q;
  slice.q_len = q_len;
  slice.k_begin = k;
  slice.k_len = k_len;
  return slice;
}

Part rows(std::vector<Slice> slices) {
  return {{0, 100}, {0, 80}, std::move(slices)};
}

void expect_rows(const Part& part, RowRange q, RowRange k) {
  EXPECT_EQ(part.q.begin, q.begin);
  EXPECT_EQ(part.q.len, q.len);
  EXPECT_EQ(part.k.begin, k.begin);
  EXPECT_EQ(part.k.len, k.len);
}

TEST(Parts, RowsOfOtherRanksLieBetweenTwoClosedParts) {
  const Parts parts = split_parts(rows({rectangle(0, 30, 0, 20), rectangle(30, 20, 20, 10), rectangle(60, 40, 40, 40)}),
                                  {{35, 5}}, {{25, 10}});
  expect_rows(parts.open, {30, 20}, {20, 15});
  EXPECT_EQ(parts.open.slices, std::vector{rectangle(0, 20, 0, 10)});
  ASSERT_EQ(parts.closed.size(), 2U);
  expect_rows(parts.closed[0], {0, 30}, {0, 20});
  EXPECT_EQ(parts.closed[0].slices, std::vector{rectangle(0, 30, 0, 20)});
  expect_rows(parts.closed[1], {50, 50}, {35, 45});
  EXPECT_EQ(parts.closed[1].slices, std::vector{rectangle(10, 40, 5, 40)});
}

TEST(Parts, LinksOpenWhateverTheirOrder) {
  // Queries 40.. see open keys 30..40, and keys 20.. that queries 20..30 see too; what lies between opens with them.
  const std::vector<Slice> slices = {rectangle(0, 10, 0, 10), rectangle(20, 10, 20, 5), rectangle(30, 5, 15, 5),
                                     rectangle(40, 10, 20, 20), rectangle(60, 40, 40, 40)};
  const Parts parts = split_parts(rows(slices), {}, {{38, 1}});
  expect_rows(parts.open, {20, 30}, {15, 25});
  EXPECT_EQ(parts.open.slices.size(), 3U);
  ASSERT_EQ(parts.closed.size(), 2U);
  expect_rows(parts.closed[0], {0, 20}, {0, 15});
  expect_rows(parts.closed[1], {50, 50}, {40, 40});
}

TEST(Parts, EverythingIsOpenWhereRegionsCantHoldTheRest) {
  const std::vector<Slice> crossed = {rectangle(0, 10, 60, 10), rectangle(40, 10, 40, 10)};
  for (const Parts& parts :
       {split_parts(rows(crossed), {{45, 1}}, {}),                       // low queries, high keys
        split_parts(rows(crossed), {}, {}),                              // nothing to do with others
        split_parts(rows({rectangle(0, 10, 0, 10)}), {{50, 1}}, {})}) {  // open ones see no own key
    expect_rows(parts.open, {0, 100}, {0, 80});
    EXPECT_TRUE(parts.closed.empty());
  }
  const Parts one = split_parts(rows({rectangle(20, 10, 20, 10)}), {{25, 1}}, {});  // the rest sees nothing
  expect_rows(one.open, {0, 100}, {0, 80});
  EXPECT_TRUE(one.closed.empty());
}

}  // namespace
}  // namespace rotunda
