// mask_slices against the words of the contract, pair by pair, over random problems.
#include <gtest/gtest.h>

#include <algorithm>
#include <tuple>

#include "problem/band.hpp"
#include "support/random_problem.hpp"
#include "support/visible.hpp"

namespace rotunda {
namespace {

using testing::entry_rows;
using testing::random_problem;
using testing::visible;

constexpr std::uint64_t kRandomMasks = 6000;

/// How often each (row, key) pair of the buffers is counted: [batch, row, key].
class PairCounts {
 public:
  explicit PairCounts(const Problem& p)
      : s_q_(p.s_q), s_k_(p.s_k), counts_(static_cast<std::size_t>(p.batches() * s_q_ * s_k_)) {}

  int& at(std::int64_t batch, std::int64_t row, std::int64_t key) {
    return counts_.at(static_cast<std::size_t>((batch * s_q_ + row) * s_k_ + key));
  }
  bool operator==(const PairCounts&) const = default;

 private:
  std::int64_t s_q_, s_k_;
  std::vector<int> counts_;
};

PairCounts wanted(const Problem& p) {
  PairCounts counts(p);
  for (std::int64_t entry = 0; entry < p.b; ++entry) {
    const auto rows = entry_rows(p, entry);
    for (std::int64_t i = 0; i < rows.q_rows; ++i) {
      for (std::int64_t j = 0; j < rows.k_rows; ++j) {
        counts.at(rows.batch, rows.q_begin + i, rows.k_begin + j) = visible(p, entry, i, j) ? 1 : 0;
      }
    }
  }
  return counts;
}

/// The definition of a slice, in plain 64-bit sums: what mask_slices returns must not overflow them.
std::int64_t count_slice(const Slice& s, PairCounts& counts) {
  std::int64_t pairs = 0;
  for (std::int64_t i = 0; i < s.q_len; ++i) {
    for (std::int64_t j = 0; j < s.k_len; ++j) {
      const std::int64_t distance = (s.k_pos + j) - (s.q_pos + i);
      const bool left = s.left == kInfinity || -s.left <= distance;
      const bool right = s.right == kInfinity || distance <= s.right;
      if (!left || !right) continue;
      ++counts.at(s.batch, s.q_begin + i, s.k_begin + j);
      ++pairs;
    }
  }
  return pairs;
}

TEST(MaskSlices, CountEveryVisiblePairOnce) {
  for (std::uint64_t seed = 0; seed < kRandomMasks; ++seed) {
    const Problem p = random_problem(seed);
    PairCounts counts(p);
    const std::vector<Slice> slices = mask_slices(p);
    for (const Slice& slice : slices) {
      const std::int64_t pairs = count_slice(slice, counts);
      EXPECT_GT(pairs, 0) << "an empty slice, seed " << seed << ": " << to_text(p);
      EXPECT_EQ(pairs, visible_pairs(slice)) << "seed " << seed << ": " << to_text(p);
      EXPECT_EQ(trim(slice), slice) << "rows or keys that see nothing, seed " << seed << ": " << to_text(p);
    }
    ASSERT_EQ(counts, wanted(p)) << "seed " << seed << ": " << to_text(p);
    const bool sorted = std::is_sorted(slices.begin(), slices.end(), [](const Slice& a, const Slice& b) {
      return std::tie(a.batch, a.q_begin) < std::tie(b.batch, b.q_begin);
    });
    EXPECT_TRUE(sorted) << "seed " << seed << ": " << to_text(p);
  }
}

TEST(RealQueryRows, AreTheRowsWithoutPadding) {
  for (std::uint64_t seed = 0; seed < kRandomMasks; ++seed) {
    const Problem p = random_problem(seed);
    std::vector<int> counts(static_cast<std::size_t>(p.batches() * p.s_q));
    std::vector<int> real = counts;
    std::int64_t end = -1;
    for (const RowSpan& span : real_query_rows(p)) {
      const std::int64_t begin = span.batch * p.s_q + span.begin;
      EXPECT_GT(span.len, 0) << "seed " << seed << ": " << to_text(p);
      EXPECT_GE(begin, end) << "not sorted, seed " << seed << ": " << to_text(p);
      end = begin + span.len;
      for (std::int64_t row = begin; row < end; ++row) ++counts.at(static_cast<std::size_t>(row));
    }
    for (std::int64_t entry = 0; entry < p.b; ++entry) {
      const auto rows = entry_rows(p, entry);
      for (std::int64_t i = 0; i < rows.q_rows; ++i) {
        const std::int64_t row = rows.batch * p.s_q + rows.q_begin + i;
        real.at(static_cast<std::size_t>(row)) = testing::is_real_row(p, entry, i) ? 1 : 0;
      }
    }
    ASSERT_EQ(counts, real) << "seed " << seed << ": " << to_text(p);
  }
}

TEST(DocumentOffsets, AscendFromZeroToTheRows) {
  for (std::uint64_t seed = 0; seed < kRandomMasks; ++seed) {
    const Problem p = random_problem(seed);
    for (const Side side : {Side::query, Side::key}) {
      const auto offsets = document_offsets(p, side);
      ASSERT_FALSE(offsets.empty());
      EXPECT_EQ(offsets.front(), 0);
      EXPECT_EQ(offsets.back(), side == Side::query ? p.s_q : p.s_k) << to_text(p);
      EXPECT_TRUE(std::is_sorted(offsets.begin(), offsets.end())) << to_text(p);
      const bool packed = p.layout == Layout::thd;
      EXPECT_EQ(offsets.size(), packed ? static_cast<std::size_t>(p.b) + 1 : 2) << to_text(p);
    }
  }
}

/// The generator makes what it says, or the tests above prove little.
TEST(RandomProblem, HasEveryKindAndStaysSmall) {
  std::int64_t prefix = 0, chunk = 0, slices = 0, lens = 0, used = 0, cross = 0, empty = 0, negative = 0;
  for (std::uint64_t seed = 0; seed < kRandomMasks; ++seed) {
    const Problem p = random_problem(seed, {.max_work = 4096});
    EXPECT_LE(p.batches() * p.s_q * p.s_k * p.h_q, 4096) << to_text(p);
    prefix += p.prefix > 0;
    chunk += p.chunk > 0;
    slices += p.slices && p.slices->size() > 1;
    lens += !p.lens_q.empty();
    used += p.layout == Layout::thd && real_query_rows(p).size() > 1;
    cross += p.s_q != p.s_k;
    empty += p.s_q == 0 || p.s_k == 0 || p.b == 0;
    negative += p.chunk > 0 && p.align == Align::bottom_right && p.layout != Layout::thd && p.s_k < p.s_q;
  }
  for (const auto count : {prefix, chunk, slices, lens, used, cross, empty, negative}) EXPECT_GT(count, 20);
  EXPECT_EQ(random_problem(7), random_problem(7));
  for (std::uint64_t seed = 0; seed < 200; ++seed) EXPECT_FALSE(random_problem(seed, {.slices = false}).slices);
}

}  // namespace
}  // namespace rotunda
