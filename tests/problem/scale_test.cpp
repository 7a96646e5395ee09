#include <gtest/gtest.h>

#include "rotunda/problem.hpp"
#include "support/error_test.hpp"

namespace rotunda {
namespace {

std::string halved(const char* text) {
  return to_text(scaled(parse_problem(text), 0.5));
}

TEST(Scaled, LengthsAndMasksShrinkAlike) {
  EXPECT_EQ(halved("s_q=8 s_k=12 h_q=2 d=64 mask=causal window=4,0 prefix=6 chunk=10"),
            "s_q=4 s_k=6 h_q=2 d=64 mask=causal window=2,0 prefix=3 chunk=5");
  EXPECT_EQ(halved("b=2 s_q=9 h_q=2 d=64 lens_q=9,5 lens_k=1,8"),
            "b=2 s_q=5 h_q=2 d=64 mask=none lens_q=4,2 lens_k=0,4");
  EXPECT_EQ(halved("layout=thd h_q=2 d=64 cu_q=0,7,20 used_q=7,11"),
            "layout=thd h_q=2 d=64 mask=none cu_q=0,3,10 used_q=3,5");
}

TEST(Scaled, NothingThatMattersVanishes) {
  EXPECT_EQ(to_text(scaled(parse_problem("s_q=8 h_q=2 d=64 window=3,inf prefix=2 chunk=4"), 1e-3)),
            "s_q=1 h_q=2 d=64 mask=none window=1,inf prefix=1 chunk=1");
  EXPECT_EQ(scaled(parse_problem("s_q=0 h_q=2 d=64"), 0.5).s_q, 0);
}

TEST(Scaled, SlicesKeepTheirBand) {
  Problem problem = parse_problem("s_q=16 h_q=2 d=64");
  problem.slices = {{0, 2, 8, 4, 12, 6, -6, 4, -2}};
  normalize(problem);
  EXPECT_EQ(*scaled(problem, 0.5).slices, (std::vector<Slice>{{0, 1, 4, 2, 6, 3, -3, 2, -1}}));
}

TEST(Scaled, SlicesThatThenOverlapAreAnError) {
  Problem problem = parse_problem("s_q=8 h_q=2 d=64");
  problem.slices = {{0, 0, 8, 0, 8, 0, 0, -1, 1}, {0, 0, 8, 0, 8, 0, 0, -2, 2}};  // two diagonals become one
  normalize(problem);
  EXPECT_ERROR((void)scaled(problem, 0.5), ErrorKind::bad_input, "overlap");
}

}  // namespace
}  // namespace rotunda
