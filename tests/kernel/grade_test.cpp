// The bar: right answers pass, planted faults do not.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "kernel/reference/reference_kernel.hpp"
#include "kernel_driver.hpp"
#include "rotunda/oracle.hpp"

namespace rotunda {
namespace {

using testing::KernelDriver;
using testing::kNaN;

/// A causal window over a few blocks; values from one seed.
Problem base_problem(const char* dtype) {
  return parse_problem(fmt::format("dtype={} s_q=200 h_q=4 h_kv=2 d=64 mask=causal window=127,0 grad=1", dtype));
}

/// Runs `run` as it is meant to be, planted fault included, and returns what the bar says of each tensor.
std::vector<Grade> grade_run(const Problem& problem, const std::function<void(KernelDriver&)>& run,
                             const Problem& executed) {
  KernelDriver driver(reference_kernel(), executed, {.seed = 1});
  run(driver);
  return grade(problem, oracle(problem, driver.tensors(), 2), driver.tensors());
}

void expect_all_fail(const std::vector<Grade>& grades) {
  ASSERT_EQ(grades.size(), 5U);  // out, lse, dq, dk, dv
  for (const Grade& one : grades) EXPECT_FALSE(one.passed()) << one.tensor << " has ratio " << one.ratio;
}

class Bar : public ::testing::TestWithParam<const char*> {};

TEST_P(Bar, PassesTheReference) {
  const Problem problem = base_problem(GetParam());
  for (const Grade& one : grade_run(
           problem, [](KernelDriver& driver) { driver.run(); }, problem)) {
    EXPECT_TRUE(one.passed()) << one.tensor << " has ratio " << one.ratio;
    EXPECT_GT(one.error, 0) << one.tensor << " is compared to itself";
  }
}

TEST_P(Bar, FailsAScaleOffByOnePercent) {
  const Problem problem = base_problem(GetParam());
  Problem wrong = problem;
  wrong.scale *= 1.01;
  const std::vector<Grade> grades = grade_run(
      problem, [](KernelDriver& driver) { driver.run(); }, wrong);
  int failed = 0;
  for (const Grade& one : grades) failed += one.passed() ? 0 : 1;
  EXPECT_GE(failed, 3);
}

TEST_P(Bar, FailsAWindowOffByOne) {
  const Problem problem = base_problem(GetParam());
  Problem wrong = problem;
  wrong.window.left = 128;
  expect_all_fail(grade_run(
      problem, [](KernelDriver& driver) { driver.run(); }, wrong));
}

TEST_P(Bar, FailsADroppedBlock) {
  const Problem problem = base_problem(GetParam());
  expect_all_fail(grade_run(
      problem,
      [](KernelDriver& driver) {
        std::vector<testing::Call> calls = testing::cut_keys(driver.problem(), mask_slices(driver.problem()), 8);
        calls[3].slices.clear();
        driver.run(calls);
      },
      problem));
}

TEST_P(Bar, FailsAStaleBlock) {
  const Problem problem = base_problem(GetParam());
  const std::vector<Grade> grades = grade_run(
      problem,
      [](KernelDriver& driver) {
        std::vector<testing::Call> calls = testing::cut_keys(driver.problem(), mask_slices(driver.problem()), 8);
        calls[5].k_begin = calls[4].k_begin;  // the slices of block 5 on the rows of block 4
        driver.run(calls);
      },
      problem);
  for (const Grade& one : grades) EXPECT_FALSE(one.passed()) << one.tensor << " has ratio " << one.ratio;
}

INSTANTIATE_TEST_SUITE_P(dtypes, Bar, ::testing::Values("bf16", "fp16", "fp32"));

TEST(Grade, CountsMisplacedInfinitiesAndNaN) {
  const Problem problem = parse_problem("dtype=bf16 s_q=4 s_k=2 h_q=1 d=8 mask=causal_bottom_right");
  KernelDriver driver(reference_kernel(), problem, {.seed = 2});
  driver.run();
  const OracleResult want = oracle(problem, driver.tensors(), 1);
  testing::expect_right(driver, want);
  const auto lse = [&] { return grade(problem, want, driver.tensors()).at(1); };
  testing::write(driver.tensors().lse, 0, 0, 0, 0, 0);  // sees nothing: -inf is right
  EXPECT_EQ(lse().misplaced, 1);
  testing::write(driver.tensors().lse, 0, 3, 0, 0, kNaN);
  EXPECT_EQ(lse().misplaced, 2);
  EXPECT_FALSE(lse().passed());
  testing::write(driver.tensors().out, 0, 1, 0, 3, kNaN);  // 0 is right
  EXPECT_EQ(grade(problem, want, driver.tensors()).at(0).misplaced, 1);
}

TEST(Grade, SkipsWhatIsUndefinedAndWhatIsAbsent) {
  const Problem problem = parse_problem("dtype=bf16 s_q=4 h_q=1 d=8 mask=causal");
  KernelDriver driver(reference_kernel(), problem, {.seed = 3});
  testing::write(driver.tensors().v, 0, 3, 0, 0, kNaN);
  driver.run();
  const OracleResult want = oracle(problem, driver.tensors(), 1);
  testing::fill(driver.tensors().out.narrow_rows(3, 1), 1e30);
  testing::expect_right(driver, want);
  const std::vector<Grade> grades = grade(problem, want, driver.tensors());
  EXPECT_EQ(grades.at(0).skipped, 8) << "out of the row that sees the NaN";
  EXPECT_EQ(grades.at(1).skipped, 1) << "its lse";
  driver.tensors().lse.data = nullptr;
  EXPECT_EQ(grade(problem, want, driver.tensors()).size(), 1U);
}

TEST(Grade, HoldsLseToItsOwnBar) {
  const Problem problem = parse_problem("dtype=bf16 s_q=8 h_q=1 d=8 mask=none");
  KernelDriver driver(reference_kernel(), problem, {.seed = 4});
  driver.run();
  const OracleResult want = oracle(problem, driver.tensors(), 1);
  const double right = testing::read(driver.tensors().lse, 0, 5, 0);
  testing::write(driver.tensors().lse, 0, 5, 0, 0, right + 0.9e-5);
  EXPECT_TRUE(grade(problem, want, driver.tensors()).at(1).passed());
  testing::write(driver.tensors().lse, 0, 5, 0, 0, right + 1.2e-5 * std::max(1.0, std::abs(right)));
  EXPECT_FALSE(grade(problem, want, driver.tensors()).at(1).passed());
}

/// A row with one key: the naive algorithm is exact, and the bar allows the roundings of a sum, no more.
TEST(Grade, HasAFloorWhereNaiveIsExact) {
  const Problem problem = parse_problem("dtype=bf16 s_q=1 h_q=1 d=64 mask=none grad=1");
  KernelDriver driver(reference_kernel(), problem, {.seed = 5});
  driver.run();
  const OracleResult want = oracle(problem, driver.tensors(), 1);
  testing::expect_right(driver, want);
  testing::write(driver.tensors().dq, 0, 0, 0, 7, 1e-4);  // exactly 0 is right
  EXPECT_FALSE(grade(problem, want, driver.tensors()).at(2).passed());
}

}  // namespace
}  // namespace rotunda
