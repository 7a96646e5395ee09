// Random problems over random ranks, schedules, shards and kernels against the float64 oracle.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <limits>
#include <string>

#include "rotunda/oracle.hpp"
#include "support/distributed.hpp"
#include "support/random_problem.hpp"
#include "support/results.hpp"

namespace rotunda::testing {
namespace {

/// One random run: everything follows from the seed.
struct Case {
  Problem problem;
  DistributedOptions options;
  TensorOptions tensors;

  [[nodiscard]] std::string text() const {
    const PlanOptions& plan = options.plan;
    return fmt::format(
        "--problem '{}' --ranks {} --schedule {} --backward-schedule {} --inner {} --shard {} "
        "--chunk-size {} --kernel {} --threads {} (head groups {}, gap {})",
        to_text(problem), options.ranks, to_string(*plan.schedule), to_string(*plan.backward_schedule), plan.inner,
        to_string(*plan.shard), plan.chunk_size, plan.kernel, plan.threads, plan.head_groups, options.gap);
  }
};

int random_divisor(Random& random, int n) {
  const int start = static_cast<int>(random.between(1, n));
  for (int d = start;; --d) {
    if (n % d == 0) return d;
  }
}

Case random_case(std::uint64_t seed, bool shrunk = false) {
  Random random(seed * 2654435761U + 97);
  RandomLimits limits;
  limits.max_work = shrunk ? 1 << 6 : 1 << 13;
  if (shrunk) limits.max_head_dim = 8;
  Case c;
  c.problem = random_problem(seed, limits);
  const auto schedule = [&] { return random.one_of(kScheduleKinds); };
  c.options.ranks = static_cast<int>(random.between(1, 9));
  c.options.plan.schedule = schedule();
  c.options.plan.backward_schedule = random.percent(60) ? *c.options.plan.schedule : schedule();
  c.options.plan.shard = random.one_of(kShardKinds);
  const bool inner = *c.options.plan.schedule == ScheduleKind::a2a_p2p && random.percent(60);
  if (inner) c.options.plan.inner = random_divisor(random, c.options.ranks);
  c.options.plan.head_groups = static_cast<int>(random.between(0, 3));
  if (*c.options.plan.shard == ShardKind::balanced) c.options.plan.chunk_size = random.between(0, 9);
  c.options.plan.kernel = random.percent(80) ? "cpu" : "reference";
  c.options.plan.threads = static_cast<int>(random.between(1, 2));
  c.options.gap = random.one_of({0, 0, 3});
  c.tensors.seed = seed;
  return c;
}

/// p2p over documents most of which lie whole on one rank: their rows are finished apart from those of the split ones.
Case documents_case(std::uint64_t seed) {
  Random random(seed * 2654435761U + 101);
  Case c = random_case(seed);
  c.problem = random_documents(seed);
  c.problem.grad = true;
  c.options.ranks = static_cast<int>(random.between(2, 5));
  c.options.plan.schedule = c.options.plan.backward_schedule = ScheduleKind::p2p;
  c.options.plan.inner = 0;
  c.options.plan.shard = ShardKind::balanced;
  c.options.plan.chunk_size = random.between(0, 9);
  return c;
}

std::string failures(const Case& c) {
  ProblemTensors tensors(c.problem, c.tensors);
  run_distributed(c.problem, c.options, tensors.views());
  const OracleResult want = oracle(c.problem, tensors.views(), 1);
  std::string text;
  for (const Grade& grade : grade(c.problem, want, tensors.views())) {
    if (grade.passed()) continue;
    text += fmt::format("{}: ratio {:.3g} (error {:.3g}, naive {:.3g}), misplaced {}\n", grade.tensor, grade.ratio,
                        grade.error, grade.naive_error, grade.misplaced);
  }
  return text;
}

std::uint64_t first_seed() {
  const char* seed = std::getenv("ROTUNDA_TEST_SEED");
  return seed == nullptr ? 1 : std::strtoull(seed, nullptr, 10);
}

/// Consecutive seeds, so that ctest's shards share the work.
constexpr int kSeedsPerRange = 40;

class Property : public ::testing::TestWithParam<int> {};

TEST_P(Property, RandomProblemsMatchTheOracle) {
  const std::uint64_t first = first_seed() + static_cast<std::uint64_t>(GetParam()) * kSeedsPerRange;
  for (std::uint64_t seed = first; seed < first + kSeedsPerRange; ++seed) {
    const Case c = random_case(seed);
    SCOPED_TRACE(fmt::format("ROTUNDA_TEST_SEED={}: {}", seed, c.text()));
    ASSERT_EQ(failures(c), "");
  }
}

/// Scales at the ends of what a problem may ask for, where a running state must still be resumed from its lse.
TEST(Extremes, ScalesMatchTheOracle) {
  for (const char* scale : {"1e-300", "1e-39", "1e-30", "1e10"}) {
    Case c;
    c.problem = parse_problem(fmt::format("s_q=19 s_k=11 h_q=4 h_kv=2 d=8 scale={} grad=1", scale));
    c.options.ranks = 3;
    c.options.plan.schedule = ScheduleKind::p2p;
    EXPECT_EQ(failures(c), "") << scale;
  }
}

/// A sink of minus infinity is none: also in rows that see nothing else.
TEST(Extremes, ASinkMayBeMinusInfinity) {
  const std::string text = "s_q=19 s_k=11 h_q=2 d=8 mask=causal_bottom_right grad=1";
  const Problem with = parse_problem(text + " sink=learnable"), without = parse_problem(text);
  ProblemTensors tensors(with), plain(without);
  for (const int head : {0, 1}) *tensors.views().sink.at<float>(0, 0, head) = -std::numeric_limits<float>::infinity();
  DistributedOptions options;
  options.ranks = 3;
  run_distributed(with, options, tensors.views());
  EXPECT_EQ(*tensors.views().dsink.at<float>(0, 0, 0), 0);
  for (const Grade& each : grade(without, oracle(without, plain.views(), 1), tensors.views())) {
    EXPECT_TRUE(each.passed() || each.tensor == "dsink") << each.tensor << " misplaced " << each.misplaced;
  }
}

/// A sink of infinity takes all the weight: what keys give is 0, on every schedule.
TEST(Extremes, ASinkMayBeInfinity) {
  const Problem problem =
      parse_problem("dtype=fp32 s_q=19 s_k=11 h_q=2 d=8 mask=causal_bottom_right sink=learnable grad=1");
  ProblemTensors tensors(problem);
  *tensors.views().sink.at<float>(0, 0, 0) = std::numeric_limits<float>::infinity();
  const OracleResult want = oracle(problem, tensors.views(), 1);
  for (const ScheduleKind schedule : kScheduleKinds) {
    DistributedOptions options;
    options.ranks = 3;
    options.plan.schedule = schedule;
    run_distributed(problem, options, tensors.views());
    const Tensors& t = tensors.views();
    EXPECT_EQ(read(t.out, 0, 18, 0), 0) << to_string(schedule);
    EXPECT_EQ(read(t.lse, 0, 18, 0), HUGE_VAL) << to_string(schedule);
    EXPECT_EQ(misses(problem, want, t), "") << to_string(schedule);
  }
}

/// All that a head's sink has a share in is NaN, and nothing of the other head's. Rows without a key keep out = 0.
TEST(Extremes, ANaNSinkReachesItsHeadAlone) {
  const Problem problem =
      parse_problem("dtype=fp32 s_q=19 s_k=11 h_q=2 d=8 mask=causal_bottom_right sink=learnable grad=1");
  ProblemTensors tensors(problem);
  *tensors.views().sink.at<float>(0, 0, 0) = std::numeric_limits<float>::quiet_NaN();
  const OracleResult want = oracle(problem, tensors.views(), 1);
  for (const ScheduleKind schedule : kScheduleKinds) {
    for (const int ranks : {1, 2, 3}) {
      SCOPED_TRACE(fmt::format("{} on {}", to_string(schedule), ranks));
      DistributedOptions options;
      options.ranks = ranks;
      options.plan.schedule = schedule;
      run_distributed(problem, options, tensors.views());
      const Tensors& t = tensors.views();
      for (int row = 0; row < 19; ++row) {  // the first eight see no key
        EXPECT_TRUE(std::isnan(read(t.lse, 0, row, 0))) << row;
        EXPECT_EQ(std::isnan(read(t.out, 0, row, 0)), row >= 8) << row;
        EXPECT_EQ(std::isnan(read(t.dq, 0, row, 0)), row >= 8) << row;
      }
      EXPECT_TRUE(std::isnan(read(t.dk, 0, 3, 0)) && std::isnan(read(t.dv, 0, 3, 0)) &&
                  std::isnan(read(t.dsink, 0, 0, 0)));
      EXPECT_EQ(misses(problem, want, t), "");  // rows without a key, and the other head's
    }
  }
}

TEST(Extremes, ANaNReachesMaxLogit) {
  const Problem problem = parse_problem("dtype=fp32 s_q=40 h_q=2 d=8 mask=causal max_logit=1");
  for (const char* kernel : {"", "reference"}) {
    for (const int ranks : {1, 2, 3}) {
      ProblemTensors tensors(problem);
      *tensors.views().k.at<float>(0, 3, 0) = std::numeric_limits<float>::quiet_NaN();
      DistributedOptions options;
      options.ranks = ranks;
      options.plan.kernel = kernel;
      run_distributed(problem, options, tensors.views());
      EXPECT_TRUE(std::isnan(read(tensors.views().max_logit, 0, 0, 0))) << kernel << ranks;
      EXPECT_TRUE(std::isfinite(read(tensors.views().max_logit, 0, 0, 1))) << kernel << ranks;
    }
  }
}

class Documents : public ::testing::TestWithParam<int> {};

TEST_P(Documents, AtHomeAndSplitMatchTheOracle) {
  const std::uint64_t first = first_seed() + static_cast<std::uint64_t>(GetParam()) * kSeedsPerRange;
  for (std::uint64_t seed = first; seed < first + kSeedsPerRange; ++seed) {
    const Case c = documents_case(seed);
    SCOPED_TRACE(fmt::format("ROTUNDA_TEST_SEED={}: {}", seed, c.text()));
    ASSERT_EQ(failures(c), "");
  }
}

INSTANTIATE_TEST_SUITE_P(First, Documents, ::testing::Range(0, 1));
INSTANTIATE_TEST_SUITE_P(Long, Documents, ::testing::Range(1, 10));

// 2,400 problems, of which sanitizers see the first 160.
INSTANTIATE_TEST_SUITE_P(First, Property, ::testing::Range(0, 4));
INSTANTIATE_TEST_SUITE_P(Long, Property, ::testing::Range(4, 60));

}  // namespace
}  // namespace rotunda::testing
