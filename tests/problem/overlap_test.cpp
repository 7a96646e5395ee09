// The search for pairs that are counted twice, against looking at every two slices and every pair.
#include "problem/overlap.hpp"

#include <gtest/gtest.h>

#include "support/error_test.hpp"
#include "support/random_problem.hpp"
#include "support/visible.hpp"

namespace rotunda {
namespace {

using testing::Random;
using testing::slice_sees;

constexpr std::int64_t kRows = 12;

bool overlap_by_counting(const Slice& a, const Slice& b) {
  if (a.batch != b.batch) return false;
  for (std::int64_t i = 0; i < kRows; ++i) {
    for (std::int64_t j = 0; j < kRows; ++j) {
      if (slice_sees(a, i, j) && slice_sees(b, i, j)) return true;
    }
  }
  return false;
}

bool any_overlap(const std::vector<Slice>& slices) {
  for (std::size_t a = 0; a < slices.size(); ++a) {
    for (std::size_t b = 0; b < a; ++b) {
      if (overlap_by_counting(slices[a], slices[b])) return true;
    }
  }
  return false;
}

Slice random_slice(Random& random) {
  Slice s;
  s.batch = random.between(0, 1);
  s.q_begin = random.between(0, kRows - 1);
  s.q_len = random.between(0, std::min<std::int64_t>(kRows - s.q_begin, 6));
  s.k_begin = random.between(0, kRows - 1);
  s.k_len = random.between(0, std::min<std::int64_t>(kRows - s.k_begin, 6));
  s.q_pos = random.between(-3, 3);
  s.k_pos = random.between(-3, 3);
  if (random.percent(70)) s.left = random.between(-4, 4);
  if (random.percent(70)) s.right = random.between(-4, 4);
  return s;
}

TEST(FindOverlap, AgreesWithCounting) {
  Random random(11);
  int clean = 0, overlapping = 0;
  for (int round = 0; round < 20000; ++round) {
    std::vector<Slice> slices;
    for (std::int64_t n = random.between(0, 7); n > 0; --n) slices.push_back(random_slice(random));
    const bool want = any_overlap(slices);
    const auto found = find_overlap(slices);
    ASSERT_EQ(found.has_value(), want) << "round " << round;
    ++(want ? overlapping : clean);
    if (!found) continue;
    ASSERT_LT(found->first, found->second) << "round " << round;
    EXPECT_TRUE(overlap_by_counting(slices.at(found->first), slices.at(found->second))) << "round " << round;
  }
  EXPECT_GT(clean, 1000);
  EXPECT_GT(overlapping, 1000);
}

TEST(FindOverlap, FindsAnySlicePutInTwice) {
  for (std::uint64_t seed = 0; seed < 3000; ++seed) {
    const Problem p = testing::random_problem(seed);
    std::vector<Slice> slices = mask_slices(p);
    EXPECT_FALSE(find_overlap(slices)) << to_text(p);
    if (slices.empty()) continue;
    const std::size_t twice = static_cast<std::size_t>(seed) % slices.size();
    slices.push_back(slices[twice]);
    const auto found = find_overlap(slices);
    ASSERT_TRUE(found) << to_text(p);
    EXPECT_EQ(*found, std::pair(twice, slices.size() - 1)) << to_text(p);
  }
}

TEST(FindOverlap, BandsOfOneRectangle) {
  const Slice below{0, 0, 8, 0, 8, 0, 0, kInfinity, 0};
  const Slice above{0, 0, 8, 0, 8, 0, 0, -1, kInfinity};
  const Slice touching{0, 0, 8, 0, 8, 0, 0, 0, kInfinity};
  EXPECT_FALSE(find_overlap({below, above}));
  EXPECT_EQ(find_overlap({below, touching}), std::pair(std::size_t{0}, std::size_t{1}));
  EXPECT_TRUE(find_overlap({above, below, touching}));
  Slice elsewhere = below;
  elsewhere.batch = 1;
  EXPECT_FALSE(find_overlap({below, elsewhere}));
}

TEST(FindOverlap, NeighboursAfterOneBetweenThemEnds) {
  const Slice causal{0, 0, 8, 0, 8, 0, 0, kInfinity, 0};
  const Slice between{0, 0, 2, 2, 1, 0, 0, kInfinity, kInfinity};
  const Slice meets_row_4{0, 0, 8, 4, 2, 0, 0, kInfinity, kInfinity};
  EXPECT_EQ(find_overlap({causal, between, meets_row_4}), std::pair(std::size_t{0}, std::size_t{2}));
  EXPECT_FALSE(find_overlap({causal, between}));
  EXPECT_FALSE(find_overlap({between, meets_row_4}));
}

TEST(FindOverlap, IsFastForManySlices) {
  // One band of rows with 100 000 blocks of keys, in an order that helps nobody: comparing every two would take hours.
  constexpr std::int64_t kBlocks = 100000;
  std::vector<Slice> slices;
  for (std::int64_t i = 0; i < kBlocks; ++i) {
    Slice s;
    s.q_len = 64;
    s.k_begin = i * 7919 % kBlocks * 2;
    s.k_len = 2;
    slices.push_back(s);
  }
  EXPECT_FALSE(find_overlap(slices));
  slices[777].k_len = 3;
  EXPECT_TRUE(find_overlap(slices));
}

TEST(FindOverlap, NormalizeNamesBothSlices) {
  Problem p;
  p.s_q = 8;
  p.h_q = 1;
  p.d = 1;
  p.slices = {{{0, 0, 2, 0, 8}, {0, 4, 4, 0, 8}, {0, 1, 2, 7, 1}}};
  EXPECT_ERROR(normalize(p), ErrorKind::bad_input, "slices[0] {\"batch\":0,\"q_begin\":0,\"q_len\":2");
  EXPECT_ERROR(normalize(p), ErrorKind::bad_input, "slices[2] {\"batch\":0,\"q_begin\":1,\"q_len\":2");
}

}  // namespace
}  // namespace rotunda
