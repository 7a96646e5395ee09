// How slices become tiles, and where slabs lie in the ring; on the host.
#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "kernel/sm90/wide/segment.cuh"
#include "kernel/sm90/wide/shape.cuh"

namespace rotunda::sm90::wide {
namespace {

bool sees(const Slice& slice, std::int64_t row, std::int64_t key) {
  const std::int64_t i = row - slice.q_begin, j = key - slice.k_begin;
  if (i < 0 || i >= slice.q_len || j < 0 || j >= slice.k_len) return false;
  const std::int64_t distance = slice.k_pos + j - (slice.q_pos + i);
  return (slice.left == kInfinity || -slice.left <= distance) && (slice.right == kInfinity || distance <= slice.right);
}

bool sees(const Segment& segment, int row, std::int64_t key) {
  return row >= segment.row_begin && row < segment.row_end && key >= segment.key_begin && key < segment.key_end &&
         key >= row + segment.low && key < row + segment.high;
}

TEST(Segment, SeesWhatTheSliceSees) {
  std::mt19937_64 random(1);
  const auto below = [&](std::int64_t n) {
    return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(n));
  };
  const auto edge = [&] { return below(4) == 0 ? kInfinity : below(300) - 60; };
  int pairs = 0;
  for (int trial = 0; trial < 300; ++trial) {
    const Slice slice{
        0, below(200), 1 + below(200), below(200), 1 + below(200), below(400) - 200, below(400) - 200, edge(), edge()};
    for (std::int64_t block = 0; block < 400; block += kBlockRows) {
      const Segment segment = segment_of(slice, block);
      for (int row = 0; row < kBlockRows; ++row) {
        for (std::int64_t key = 0; key < 400; ++key) {
          const bool seen = sees(slice, block + row, key);
          ASSERT_EQ(sees(segment, row, key), seen) << "trial " << trial << ", row " << block + row << ", key " << key;
          pairs += seen ? 1 : 0;
        }
      }
    }
  }
  EXPECT_GT(pairs, 100000);
}

TEST(Segment, HasNoKeysBesideThoseSeen) {
  const Slice causal{0, 0, 1000, 0, 1000, 0, 0, kInfinity, 0};
  EXPECT_EQ(segment_of(causal, 0).key_end, 128);
  EXPECT_EQ(segment_of(causal, 896).key_end, 1000);
  EXPECT_EQ(segment_of(causal, 896).tiles(), 8);
  const Slice window{0, 0, 1000, 0, 1000, 0, 0, 10, 0};
  EXPECT_EQ(segment_of(window, 256).key_begin, 246);
  EXPECT_EQ(segment_of(window, 256).tiles(), 2);
  EXPECT_EQ(segment_of(Slice{0, 0, 1000, 0, 1000, 0, 0, -5, 4}, 0).tiles(), 0);
  EXPECT_EQ(segment_of(Slice{0, 0, 100, 0, 100, 0, 0, kInfinity, kInfinity}, 128).tiles(), 0);
}

TEST(Segment, EdgesDoNotOverflow) {
  const std::int64_t far = std::int64_t{1} << 59;  // normalize() clips positions below that
  const Segment all = segment_of(Slice{0, 0, 500, 0, 700, -far, far, kInfinity, kInfinity}, 128);
  EXPECT_EQ(all.key_begin, 0);
  EXPECT_EQ(all.key_end, 700);
  EXPECT_EQ(segment_of(Slice{0, 0, 500, 0, 700, -far, far, kInfinity, 0}, 128).tiles(), 0);
}

/// K0 K1 V0 K2 V1 …, slab after slab, stage after stage, for so many tiles.
template <int kChunks>
void expect_stages_in_order(int tiles) {
  using S = Shape<kChunks>;
  int stage = 0;
  const auto expect = [&](int first, int slabs) {
    for (int i = 0; i < slabs; ++i) {
      ASSERT_EQ(S::stage(first, i), stage) << kChunks << " chunks, " << tiles << " tiles";
      stage = (stage + 1) % S::kStages;
    }
  };
  expect(S::key_stage(0), kChunks);
  for (int n = 1; n < tiles; ++n) {
    expect(S::key_stage(n), kChunks);
    expect(S::value_stage(n - 1, false), S::kValueSlabs);
  }
  expect(S::value_stage(tiles - 1, true), S::kValueSlabs);
}

TEST(Ring, StagesFollowEachOther) {
  for (int tiles = 2; tiles < 40; ++tiles) {
    expect_stages_in_order<5>(tiles);
    expect_stages_in_order<6>(tiles);
    expect_stages_in_order<7>(tiles);
    expect_stages_in_order<8>(tiles);
  }
}

}  // namespace
}  // namespace rotunda::sm90::wide
