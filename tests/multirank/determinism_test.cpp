// The same problem, ranks, schedule, shard and kernel give the same bits: repeated, at any timing, threads, strides.
#include <gtest/gtest.h>

#include <chrono>
#include <thread>
#include <tuple>

#include "support/distributed.hpp"
#include "support/random_problem.hpp"
#include "support/results.hpp"

namespace rotunda::testing {
namespace {

class Determinism : public ::testing::TestWithParam<ScheduleKind> {};

/// On a kernel by name.
class RepeatedRuns : public ::testing::TestWithParam<std::tuple<const char*, ScheduleKind>> {};

TEST_P(RepeatedRuns, AtDifferentTimingsHaveTheSameBits) {
  const auto& [kernel, schedule] = GetParam();
  const Problem problem = parse_problem(
      "dtype=bf16 layout=thd cu_q=0,50,131,200 used_q=50,70,60 h_q=6 h_kv=3 d=40 mask=causal sink=learnable "
      "max_logit=1 deterministic=1 grad=1");
  for (const int ranks : {2, 3, 5}) {
    ProblemTensors first(problem, {.seed = 3});
    ProblemTensors again(problem, {.seed = 3});
    DistributedOptions options;
    options.ranks = ranks;
    options.plan.schedule = schedule;
    options.plan.shard = ShardKind::balanced;
    options.plan.kernel = kernel;
    options.plan.threads = 1;
    run_distributed(problem, options, first.views());
    for (int repeat = 0; repeat < 10; ++repeat) {
      Random random(static_cast<std::uint64_t>(repeat));
      std::vector<std::int64_t> delays;
      for (int rank = 0; rank < ranks; ++rank) delays.push_back(random.between(0, 3));
      options.before = [&](Attention&, int rank) {
        std::this_thread::sleep_for(std::chrono::milliseconds(delays[static_cast<std::size_t>(rank)]));
      };
      options.plan.threads = 1 + repeat % 3;
      options.gap = repeat % 2 == 0 ? 0 : 5;
      again.poison_outputs();
      run_distributed(problem, options, again.views());
      ASSERT_EQ(differing_bits(first.views(), again.views()), "") << "ranks " << ranks;
    }
  }
}

TEST_P(Determinism, EveryLayoutHasTheSameBits) {
  std::vector<std::vector<double>> results;
  for (const char* layout : {"bshd", "sbhd", "bhsd"}) {
    const Problem problem = parse_problem(
        fmt::format("dtype=fp16 layout={} b=2 s_q=70 h_q=4 h_kv=2 d=48 mask=causal deterministic=1 grad=1", layout));
    ProblemTensors tensors(problem, {.seed = 4});
    DistributedOptions options;
    options.ranks = 3;
    options.plan.schedule = GetParam();
    run_distributed(problem, options, tensors.views());
    std::vector<double> all;
    for (const auto& [name, view] : outputs(tensors.views())) {
      const auto values = to_vector(view);
      all.insert(all.end(), values.begin(), values.end());
    }
    results.push_back(std::move(all));
  }
  EXPECT_EQ(results[0], results[1]);
  EXPECT_EQ(results[0], results[2]);
}

INSTANTIATE_TEST_SUITE_P(Schedules, Determinism, ::testing::ValuesIn(kScheduleKinds),
                         [](const auto& param_info) { return to_string(param_info.param); });

std::string name_of(const ::testing::TestParamInfo<RepeatedRuns::ParamType>& param_info) {
  return to_string(std::get<1>(param_info.param));
}

INSTANTIATE_TEST_SUITE_P(Cpu, RepeatedRuns,
                         ::testing::Combine(::testing::Values("cpu"), ::testing::ValuesIn(kScheduleKinds)), name_of);
INSTANTIATE_TEST_SUITE_P(LongReference, RepeatedRuns,
                         ::testing::Combine(::testing::Values("reference"), ::testing::ValuesIn(kScheduleKinds)),
                         name_of);

}  // namespace
}  // namespace rotunda::testing
