// Which slices a mask becomes, on small cases done by hand.
#include <gtest/gtest.h>

#include <limits>

#include "support/error_test.hpp"
#include "support/visible.hpp"

namespace rotunda {
namespace {

constexpr std::int64_t kInf = kInfinity;
constexpr std::int64_t kLeast = std::numeric_limits<std::int64_t>::min();
using Slices = std::vector<Slice>;
using Spans = std::vector<RowSpan>;
using Offsets = std::vector<std::int64_t>;

Problem dense_problem(const std::string& rest) {
  return parse_problem("h_q=1 d=8 " + rest);
}
Problem packed_problem(const std::string& rest) {
  return parse_problem("layout=thd h_q=1 d=8 " + rest);
}

std::int64_t pairs(const Problem& p) {
  std::int64_t count = 0;
  for (const Slice& slice : mask_slices(p)) count += visible_pairs(slice);
  return count;
}

TEST(MaskSlices, Dense) {
  EXPECT_EQ(mask_slices(dense_problem("s_q=4 s_k=6")), (Slices{{0, 0, 4, 0, 6, 0, 0, kInf, kInf}}));
  EXPECT_EQ(mask_slices(dense_problem("s_q=4 mask=causal")), (Slices{{0, 0, 4, 0, 4, 0, 0, kInf, 0}}));
  EXPECT_EQ(mask_slices(dense_problem("b=2 s_q=4 mask=causal lens_q=4,2 lens_k=3,4")),
            (Slices{{0, 0, 4, 0, 3, 0, 0, kInf, 0}, {1, 0, 2, 0, 2, 0, 0, kInf, 0}}));
  EXPECT_EQ(mask_slices(dense_problem("b=2 s_q=4 lens_q=4,4")),
            (Slices{{0, 0, 4, 0, 4, 0, 0, kInf, kInf}, {1, 0, 4, 0, 4, 0, 0, kInf, kInf}}));
}

TEST(MaskSlices, CornersOfRectangles) {
  EXPECT_EQ(mask_slices(dense_problem("s_q=3 s_k=128 mask=causal")), (Slices{{0, 0, 3, 0, 3, 0, 0, kInf, 0}}));
  EXPECT_EQ(mask_slices(dense_problem("s_q=3 s_k=128 mask=causal_bottom_right")),
            (Slices{{0, 0, 3, 0, 128, 125, 0, kInf, 0}}));
  EXPECT_EQ(mask_slices(dense_problem("s_q=5 s_k=2 mask=causal_bottom_right")),
            (Slices{{0, 3, 2, 0, 2, 0, 0, kInf, 0}}));
  // The corner is that of the visible lengths: 2 queries and 4 keys of 5 and 6.
  EXPECT_EQ(mask_slices(dense_problem("s_q=5 s_k=6 lens_q=2 lens_k=4 mask=causal_bottom_right")),
            (Slices{{0, 0, 2, 0, 4, 2, 0, kInf, 0}}));
}

TEST(MaskSlices, AWindowOneWiderSeesMore) {
  // Row i sees min(i, L) + 1 keys.
  const auto rows = [](std::int64_t s, std::int64_t left) {
    std::int64_t count = 0;
    for (std::int64_t i = 0; i < s; ++i) count += std::min(i, left) + 1;
    return count;
  };
  EXPECT_EQ(pairs(dense_problem("s_q=1024 mask=causal window=127,0")), rows(1024, 127));
  EXPECT_EQ(pairs(dense_problem("s_q=1024 mask=causal window=128,0")), rows(1024, 128));
  EXPECT_EQ(pairs(dense_problem("s_q=1024 mask=causal")), rows(1024, 1024));
  EXPECT_NE(pairs(dense_problem("s_q=1024 window=127,inf")),
            pairs(dense_problem("s_q=1024 mask=causal window=127,inf")));
  EXPECT_EQ(mask_slices(dense_problem("s_q=8 window=2,1")), (Slices{{0, 0, 8, 0, 8, 0, 0, 2, 1}}));
  EXPECT_EQ(mask_slices(dense_problem("s_q=8 mask=causal window=2,5")), (Slices{{0, 0, 8, 0, 8, 0, 0, 2, 0}}));
}

TEST(MaskSlices, PrefixAndChunk) {
  EXPECT_EQ(mask_slices(dense_problem("s_q=4 mask=causal prefix=2")),
            (Slices{{0, 0, 4, 0, 2, 0, 0, kInf, kInf}, {0, 2, 2, 2, 2, 2, 2, kInf, 0}}));
  EXPECT_EQ(mask_slices(dense_problem("s_q=5 chunk=3")),
            (Slices{{0, 0, 3, 0, 3, 0, 0, kInf, kInf}, {0, 3, 2, 3, 2, 3, 3, kInf, kInf}}));
  // Positions -3..1: the first three rows are in chunk -1, which has no keys.
  EXPECT_EQ(mask_slices(dense_problem("s_q=5 s_k=2 align=bottom_right chunk=3")),
            (Slices{{0, 3, 2, 0, 2, 0, 0, kInf, kInf}}));
  // Chunk ends the prefix: rows of the second chunk do not see it.
  EXPECT_EQ(
      mask_slices(dense_problem("s_q=4 mask=causal prefix=1 chunk=2")),
      (Slices{{0, 0, 2, 0, 1, 0, 0, kInf, kInf}, {0, 1, 1, 1, 1, 1, 1, kInf, kInf}, {0, 2, 2, 2, 2, 2, 2, kInf, 0}}));
}

TEST(MaskSlices, Packed) {
  EXPECT_EQ(mask_slices(packed_problem("cu_q=0,3,3,8 used_q=2,0,5 mask=causal")),
            (Slices{{0, 0, 2, 0, 2, 0, 0, kInf, 0}, {0, 3, 5, 3, 5, 0, 0, kInf, 0}}));
  EXPECT_EQ(mask_slices(packed_problem("cu_q=0,1,2 cu_k=0,128,256 used_k=32,64 mask=causal_bottom_right")),
            (Slices{{0, 0, 1, 0, 32, 31, 0, kInf, kInf}, {0, 1, 1, 128, 64, 63, 0, kInf, kInf}}));
  EXPECT_TRUE(mask_slices(packed_problem("cu_q=0")).empty());
}

TEST(MaskSlices, NothingToSee) {
  for (const char* text :
       {"s_q=0", "s_q=4 s_k=0", "s_q=0 s_k=4", "b=0 s_q=4", "s_q=4 lens_k=0", "b=4000000000000 s_q=0"}) {
    EXPECT_TRUE(mask_slices(dense_problem(text)).empty()) << text;
  }
}

TEST(MaskSlices, TheLargestWindowsDoNotOverflow) {
  const Slices open = {{0, 0, 8, 0, 8, 0, 0, kInf, kInf}};
  EXPECT_EQ(mask_slices(dense_problem("s_q=8 window=9223372036854775807,9223372036854775807")), open);
  EXPECT_EQ(mask_slices(dense_problem("s_q=8 window=9223372036854775806,9223372036854775806")), open);
  EXPECT_EQ(mask_slices(dense_problem("s_q=8 window=9223372036854775806,0 mask=causal")),
            mask_slices(dense_problem("s_q=8 mask=causal")));
  EXPECT_EQ(mask_slices(dense_problem("s_q=8 chunk=9223372036854775807 prefix=9223372036854775807")), open);
  EXPECT_EQ(mask_slices(dense_problem("s_q=8 s_k=3 align=bottom_right chunk=9223372036854775807")),
            (Slices{{0, 5, 3, 0, 3, 0, 0, kInf, kInf}}));
  const std::int64_t rows = std::int64_t{1} << 61;
  EXPECT_EQ(mask_slices(parse_problem("h_q=1 d=1 s_q=1 s_k=2305843009213693952 mask=causal_bottom_right window=3,0")),
            (Slices{{0, 0, 1, rows - 4, 4, 0, 0, kInf, kInf}}));
}

Problem general(Slices slices, std::int64_t s = 8) {
  Problem p;
  p.h_q = 1;
  p.d = 8;
  p.s_q = s;
  p.slices = std::move(slices);
  normalize(p);
  return p;
}

TEST(MaskSlices, GeneralOnesKeepSmallPositions) {
  const Slice slice{0, 2, 4, 1, 5, -10, 7, 3, 18};
  ASSERT_TRUE(testing::slice_sees(slice, 2, 1));
  EXPECT_EQ(mask_slices(general({slice})), (Slices{{0, 2, 4, 1, 5, -10, 7, kInf, 18}}));
}

TEST(MaskSlices, HugePositionsAreRebased) {
  // Both far away, 1 apart: causal, shifted by one.
  EXPECT_EQ(mask_slices(general({{0, 0, 8, 0, 8, kInf - 20, kInf - 19, kInf, 0}})),
            (Slices{{0, 1, 7, 0, 7, 0, 0, kInf, 0}}));
  EXPECT_EQ(mask_slices(general({{0, 0, 8, 0, 8, kLeast, kLeast + 2, kInf, 5}})),
            (Slices{{0, 0, 8, 0, 8, 0, 0, kInf, 3}}));
  // At opposite ends: 2^64 - 1 apart, in sight of an open band only.
  EXPECT_EQ(mask_slices(general({{0, 0, 8, 0, 8, kLeast, kInf, kInf, kInf}})),
            (Slices{{0, 0, 8, 0, 8, 0, 0, kInf, kInf}}));
  EXPECT_TRUE(mask_slices(general({{0, 0, 8, 0, 8, kLeast, kInf, kInf, kInf - 1}})).empty());
  EXPECT_TRUE(mask_slices(general({{0, 0, 8, 0, 8, kInf, kLeast, kInf - 1, 0}})).empty());
  EXPECT_TRUE(mask_slices(general({{0, 0, 8, 0, 8, 0, 0, kLeast, kInf}})).empty());
  EXPECT_TRUE(mask_slices(general({{0, 0, 8, 0, 8, 0, 0, kInf, kLeast}})).empty());
}

TEST(RealQueryRows, CountRowsThatSeeNothing) {
  EXPECT_EQ(real_query_rows(dense_problem("b=2 s_q=5 s_k=2 mask=causal_bottom_right lens_q=5,0")), (Spans{{0, 0, 5}}));
  EXPECT_EQ(real_query_rows(dense_problem("s_q=5 s_k=0")), (Spans{{0, 0, 5}}));
  EXPECT_EQ(real_query_rows(packed_problem("cu_q=0,3,8 used_q=2,5")), (Spans{{0, 0, 2}, {0, 3, 5}}));
  EXPECT_EQ(real_query_rows(packed_problem("cu_q=0,3,8")), (Spans{{0, 0, 8}}));
  EXPECT_EQ(
      real_query_rows(general(
          {{0, 5, 2, 0, 0, 0, 0, kInf, kInf}, {0, 0, 3, 0, 8, 0, 0, kInf, -100}, {0, 2, 2, 0, 4, 0, 0, kInf, kInf}})),
      (Spans{{0, 0, 4}, {0, 5, 2}}));
}

TEST(DocumentOffsets, ArePhysical) {
  EXPECT_EQ(document_offsets(dense_problem("b=2 s_q=5 s_k=7 lens_q=1,2"), Side::query), (Offsets{0, 5}));
  EXPECT_EQ(document_offsets(dense_problem("b=2 s_q=5 s_k=7 lens_q=1,2"), Side::key), (Offsets{0, 7}));
  EXPECT_EQ(document_offsets(packed_problem("cu_q=0,3,8 used_q=2,5"), Side::query), (Offsets{0, 3, 8}));
  EXPECT_EQ(document_offsets(packed_problem("cu_q=0,3,8 cu_k=0,4,4"), Side::key), (Offsets{0, 4, 4}));
}

TEST(PackedSlices, RowsComeFromTheSlicesOrTheOffsets) {
  const std::string slices =
      R"( slices=[{"batch":0,"q_begin":1,"q_len":3,"k_begin":2,"k_len":5,"q_pos":0,"k_pos":0,"left":null,"right":null}])";
  const Problem bare = packed_problem(slices);
  EXPECT_EQ(bare.cu_q, (Offsets{0, 4}));
  EXPECT_EQ(bare.cu_k, (Offsets{0, 7}));
  EXPECT_EQ(bare.b, 1);
  const Problem longer = packed_problem("cu_q=0,4,9" + slices);
  EXPECT_EQ(longer.s_q, 9);
  EXPECT_EQ(longer.s_k, 9);
  EXPECT_EQ(document_offsets(longer, Side::query), (Offsets{0, 9}));
  EXPECT_EQ(mask_slices(longer), mask_slices(bare));
  EXPECT_EQ(packed_problem("cu_k=0,8" + slices).s_q, 4);
  EXPECT_EQ(packed_problem("cu_k=0,8" + slices).s_k, 8);
  EXPECT_EQ(packed_problem("slices=[]").s_q, 0);
}

TEST(Normalize, FillsInDefaults) {
  Problem p;
  p.s_q = 8;
  p.h_q = 4;
  p.d = 64;
  p.mask = Mask::causal;
  p.lens_q = {8};
  normalize(p);
  EXPECT_EQ(p.s_k, 8);
  EXPECT_EQ(p.h_kv, 4);
  EXPECT_EQ(p.d_v, 64);
  EXPECT_EQ(p.scale, 0.125);
  EXPECT_EQ(p.window, (Window{kInf, 0}));
  EXPECT_TRUE(p.lens_q.empty());
  EXPECT_EQ(packed_problem("cu_q=0,3,8").used_k, (Offsets{3, 5}));
  EXPECT_EQ(packed_problem("cu_q=0,3,8 used_q=1,2").used_k, (Offsets{1, 2}));
  EXPECT_EQ(packed_problem("cu_q=0,3,8 cu_k=0,3,8 used_q=1,2").used_k, (Offsets{3, 5}));
}

TEST(Normalize, RefusesContradictionsOfAStruct) {
  const auto wrong = [](const auto& change) {
    Problem p = parse_problem("s_q=8 h_q=2 d=64");
    change(p);
    normalize(p);
  };
  EXPECT_ERROR(wrong([](Problem& p) { p.cu_q = {0, 8}; }), ErrorKind::bad_input, "cu_q=0,8: only for layout=thd");
  EXPECT_ERROR(wrong([](Problem& p) { p.layout = Layout::thd; }), ErrorKind::bad_input, "needs cu_q");
  EXPECT_ERROR(wrong([](Problem& p) { p.s_k = -2; }), ErrorKind::bad_input, "s_k=-2");
  EXPECT_ERROR(wrong([](Problem& p) { p.scale = -1; }), ErrorKind::bad_input, "scale=-1");
  EXPECT_ERROR(wrong([](Problem& p) { p.chunk = -1; }), ErrorKind::bad_input, "chunk=-1");
  EXPECT_ERROR(wrong([](Problem& p) { p.window.left = -1; }), ErrorKind::bad_input, "window=-1");
  EXPECT_ERROR(wrong([](Problem& p) {
                 p.slices.emplace();
                 p.mask = Mask::causal;
               }),
               ErrorKind::bad_input, "slices say the whole mask");
  EXPECT_ERROR(wrong([](Problem& p) {
                 p.layout = Layout::thd;
                 p.cu_q = {0, 8};
                 p.lens_k = {8};
               }),
               ErrorKind::bad_input, "lens_k=8");
}

}  // namespace
}  // namespace rotunda
