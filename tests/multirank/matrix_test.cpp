// TransformerEngine's matrix of context-parallel cases (its test_attention_with_cp.py, version 2.20), the combinations
// that it declines included: 1, 2, 3, 4 and 8 ranks, every schedule, bshd, sbhd and packed documents with padding,
// three dtypes, forward and backward, against float64.
//
// Lengths 4096 are 512 here, windows shrink alike so that they still cut, and head counts are smaller at the same
// ratio: a float64 oracle has to keep up. ROTUNDA_TEST_FULL=1 runs the original head counts.
#include <gtest/gtest.h>

#include <cstdlib>

#include "support/distributed.hpp"
#include "support/random_problem.hpp"
#include "support/results.hpp"

namespace rotunda::testing {
namespace {

struct Row {
  const char* name;
  int h_q, h_kv;            // in CI
  int full_h_q, full_h_kv;  // in the original
  int d, d_v;
  const char* mask;  // problem keys
};

constexpr Row kRows[] = {
    {"causal", 4, 4, 12, 12, 128, 128, "mask=causal"},
    {"none", 4, 4, 12, 12, 128, 128, "mask=none"},
    {"causal_window", 2, 2, 12, 12, 128, 128, "mask=causal window=64,0"},
    {"window", 2, 2, 12, 12, 128, 128, "mask=none window=64,64"},
    {"gqa_8_causal", 8, 1, 32, 4, 128, 128, "mask=causal"},
    {"gqa_2_none", 4, 2, 12, 2, 128, 128, "mask=none"},
    {"short_window", 2, 2, 32, 32, 128, 128, "mask=causal window=16,0"},
    {"gqa_2_window", 4, 2, 12, 2, 128, 128, "mask=none window=64,64"},
    {"mla_causal", 2, 2, 128, 128, 192, 128, "mask=causal"},
    {"mla_none", 2, 2, 12, 12, 192, 128, "mask=none"},
    {"mla_causal_window", 2, 2, 12, 12, 192, 128, "mask=causal window=64,0"},
    {"mla_window", 2, 2, 12, 12, 192, 128, "mask=none window=64,64"},
    {"values_64_causal", 2, 2, 12, 12, 128, 64, "mask=causal"},
    {"gqa_8_d64", 8, 1, 64, 8, 64, 64, "mask=causal"},
    {"gqa_8_d64_sink_zero", 8, 1, 64, 8, 64, 64, "mask=causal sink=zero"},
    {"gqa_8_d64_sink_learnable", 8, 1, 64, 8, 64, 64, "mask=causal sink=learnable"},
    {"d64_window_sink_learnable", 2, 2, 64, 64, 64, 64, "mask=causal window=16,0 sink=learnable"},
    {"d256_causal", 2, 2, 16, 16, 256, 256, "mask=causal"},
    {"d256_causal_window", 2, 2, 16, 16, 256, 256, "mask=causal window=64,0"},
    {"d512_causal_gqa", 2, 1, 8, 4, 512, 512, "mask=causal"},
    {"d512_none_gqa", 2, 1, 8, 4, 512, 512, "mask=none"},
    {"d512_causal", 2, 2, 8, 8, 512, 512, "mask=causal"},
    {"d512_none", 2, 2, 8, 8, 512, 512, "mask=none"},
};

constexpr int kLength = 512;

Problem problem_of(const Row& row, DType dtype, const std::string& layout) {
  const bool full = std::getenv("ROTUNDA_TEST_FULL") != nullptr;
  return parse_problem(fmt::format("dtype={} {} h_q={} h_kv={} d={} d_v={} {} grad=1", to_string(dtype), layout,
                                   full ? row.full_h_q : row.h_q, full ? row.full_h_kv : row.h_kv, row.d, row.d_v,
                                   row.mask));
}

/// Two documents of random lengths in kLength rows, padded.
std::string packed_layout(std::uint64_t seed) {
  Random random(seed);
  const std::int64_t border = random.between(kLength / 4, 3 * kLength / 4);
  const std::int64_t first = random.between(border / 2, border);
  const std::int64_t second = random.between((kLength - border) / 2, kLength - border);
  return fmt::format("layout=thd cu_q=0,{},{} used_q={},{}", border, kLength, first, second);
}

using Param = std::tuple<Row, DType>;
class LongMatrix : public ::testing::TestWithParam<Param> {};

void run_layouts(const std::vector<Problem>& layouts) {
  // All layouts hold the same numbers at the same packed index, so one oracle serves them.
  ProblemTensors first(layouts.front());
  const OracleResult want = oracle(layouts.front(), first.views(), 1);
  for (const Problem& problem : layouts) {
    ProblemTensors tensors(problem);
    for (const int ranks : {1, 2, 3, 4, 8}) {
      for (const ScheduleKind schedule :
           {ScheduleKind::p2p, ScheduleKind::all_gather, ScheduleKind::a2a, ScheduleKind::a2a_p2p}) {
        DistributedOptions options;
        options.ranks = ranks;
        options.plan.schedule = schedule;
        options.plan.shard = ShardKind::dual_chunk;
        options.plan.threads = 1;
        tensors.poison_outputs();
        run_distributed(problem, options, tensors.views());
        ASSERT_EQ(misses(problem, want, tensors.views()), "")
            << to_text(problem) << " ranks " << ranks << " " << to_string(schedule);
        if (ranks == 1) break;  // all schedules are one there
      }
    }
  }
}

TEST_P(LongMatrix, MatchesTheOracle) {
  const auto& [row, dtype] = GetParam();
  const std::string dense = fmt::format("b=1 s_q={}", kLength);
  run_layouts({problem_of(row, dtype, "layout=bshd " + dense), problem_of(row, dtype, "layout=sbhd " + dense)});
  run_layouts({problem_of(row, dtype, packed_layout(static_cast<std::uint64_t>(row.d + row.h_q)))});
}

INSTANTIATE_TEST_SUITE_P(TransformerEngine, LongMatrix,
                         ::testing::Combine(::testing::ValuesIn(kRows),
                                            ::testing::Values(DType::bf16, DType::fp16, DType::fp32)),
                         [](const auto& param_info) {
                           return fmt::format("{}_{}", std::get<0>(param_info.param).name,
                                              to_string(std::get<1>(param_info.param)));
                         });

}  // namespace
}  // namespace rotunda::testing
