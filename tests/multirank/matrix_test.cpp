// TransformerEngine's matrix of context-parallel cases (its test_attention_with_cp.py, version 2.20), the combinations
// that it declines included: 1, 2, 3, 4 and 8 ranks, every schedule, bshd, sbhd and packed documents with padding,
// three dtypes, forward and backward, against float64.
//
// Lengths 4096 are 512 here, windows shrink alike so that they still cut, and head counts are smaller at the same
// ratio: a float64 oracle has to keep up. ROTUNDA_TEST_FULL=1 runs the original head counts. tests/gpu runs full sizes.
#include <gtest/gtest.h>

#include <cstdlib>

#include "support/distributed.hpp"
#include "support/random_problem.hpp"
#include "support/results.hpp"
#include "support/transformer_engine_matrix.hpp"

namespace rotunda::testing {
namespace {

// Under sanitizers, which slow the oracle down some thirtyfold, every case stands at a quarter of its length.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr int kLength = 128;
#else
constexpr int kLength = 512;
#endif
constexpr int kShrink = 4096 / kLength;

Problem problem_of(const MatrixRow& row, DType dtype, const std::string& layout) {
  const bool full = std::getenv("ROTUNDA_TEST_FULL") != nullptr;
  return parse_problem(fmt::format("dtype={} {} h_q={} h_kv={} d={} d_v={} {} grad=1", to_string(dtype), layout,
                                   full ? row.full_h_q : row.h_q, full ? row.full_h_kv : row.h_kv, row.d, row.d_v,
                                   mask_keys(row, kShrink)));
}

/// Two documents of random lengths in kLength rows, padded.
std::string packed_layout(std::uint64_t seed) {
  Random random(seed);
  const std::int64_t border = random.between(kLength / 4, 3 * kLength / 4);
  const std::int64_t first = random.between(border / 2, border);
  const std::int64_t second = random.between((kLength - border) / 2, kLength - border);
  return fmt::format("layout=thd cu_q=0,{},{} used_q={},{}", border, kLength, first, second);
}

using Param = std::tuple<MatrixRow, DType>;
class LongMatrix : public ::testing::TestWithParam<Param> {};

void run_layouts(const std::vector<Problem>& layouts) {
  // All layouts hold the same numbers at the same packed index, so one oracle serves them.
  ProblemTensors first(layouts.front());
  const OracleResult want = oracle(layouts.front(), first.views(), 1);
  for (const Problem& problem : layouts) {
    ProblemTensors tensors(problem);
    for (const int ranks : {1, 2, 3, 4, 8}) {
      for (const ScheduleKind schedule : kScheduleKinds) {
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
                         ::testing::Combine(::testing::ValuesIn(kMatrixRows),
                                            ::testing::Values(DType::bf16, DType::fp16, DType::fp32)),
                         [](const auto& param_info) {
                           return fmt::format("{}_{}", std::get<0>(param_info.param).name,
                                              to_string(std::get<1>(param_info.param)));
                         });

}  // namespace
}  // namespace rotunda::testing
