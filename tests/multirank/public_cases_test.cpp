// Faults that users of context-parallel attention reported (P01 to P14), each at every listed rank count and schedule,
// on contiguous and dual_chunk shards. The recipes are tests/cases/*.json.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "support/case_file.hpp"
#include "support/distributed.hpp"
#include "support/results.hpp"

namespace rotunda::testing {
namespace {

constexpr ShardKind kShards[] = {ShardKind::contiguous, ShardKind::dual_chunk};

/// One combination of a case; false if it failed beyond going on.
template <class Body>
bool run_combination(const CaseFile& c, int ranks, ScheduleKind schedule, ShardKind shard, Body&& body) {
  DistributedOptions options;
  options.ranks = ranks;
  options.plan.schedule = schedule;
  options.plan.shard = shard;
  options.plan.threads = 1;
  SCOPED_TRACE(fmt::format("{} ranks {} {} {}", c.id, ranks, to_string(schedule), to_string(shard)));
  body(options);
  return !::testing::Test::HasFatalFailure();
}

/// Calls body(options) for every combination of a case.
template <class Body>
void for_combinations(const CaseFile& c, Body&& body) {
  for (const int ranks : c.ranks) {
    for (const ScheduleKind schedule : c.schedules) {
      for (const ShardKind shard : kShards) {
        if (!run_combination(c, ranks, schedule, shard, body)) return;
      }
    }
  }
}

/// Every schedule once, with the rank counts and shards taking turns: what a sanitizer has time for.
template <class Body>
void for_each_schedule(const CaseFile& c, Body&& body) {
  for (std::size_t i = 0; i < c.schedules.size(); ++i) {
    if (!run_combination(c, c.ranks[i % c.ranks.size()], c.schedules[i], kShards[i % 2], body)) return;
  }
}

void expect_no_nan(const Tensors& views) {
  for (const auto& [name, view] : outputs(views)) {
    for (const double value : to_vector(view)) ASSERT_FALSE(std::isnan(value)) << name;
  }
}

const auto kExactCases =
    ::testing::Values("P01_none", "P01_causal", "P01_random", "P02", "P02_poisoned", "P03", "P03_prefill", "P05_fp32",
                      "P05_bf16", "P06_128_64", "P06_64_128", "P06_192_128", "P07_28_7", "P07_32_2", "P07_40_8", "P08",
                      "P08_left_only", "P09_3x128_causal", "P09_3x128_causal_bottom_right", "P09_5x2_causal",
                      "P09_5x2_causal_bottom_right", "P09_random", "P10", "P10_causal", "P10_window", "P11", "P11_ones",
                      "P12", "P12_cross", "P13", "P13_causal", "P14_first", "P14_second", "P14_third");

class PublicCase : public ::testing::TestWithParam<const char*> {
 protected:
  CaseFile case_ = read_case(GetParam());
  ProblemTensors tensors_ = make_tensors(case_);
  OracleResult want_ = oracle(case_.problem, tensors_.views(), 1);

  void expect_exact(const DistributedOptions& options) {
    tensors_.poison_outputs();
    run_distributed(case_.problem, options, tensors_.views());
    ASSERT_EQ(misses(case_.problem, want_, tensors_.views()), "");
    if (case_.id != "P02_poisoned") expect_no_nan(tensors_.views());
  }
};

class LongPublicCase : public PublicCase {};

TEST_P(PublicCase, IsExactOnEverySchedule) {
  for_each_schedule(case_, [&](const DistributedOptions& options) { expect_exact(options); });
}

TEST_P(LongPublicCase, IsExactOnEveryScheduleRankCountAndShard) {
  for_combinations(case_, [&](const DistributedOptions& options) { expect_exact(options); });
}

INSTANTIATE_TEST_SUITE_P(All, PublicCase, kExactCases,
                         [](const auto& param_info) { return std::string(param_info.param); });
INSTANTIATE_TEST_SUITE_P(All, LongPublicCase, kExactCases,
                         [](const auto& param_info) { return std::string(param_info.param); });

void expect_rows(const Tensors& views, const std::vector<double>& out, const std::vector<double>& lse, double dim_of) {
  for (std::size_t row = 0; row < out.size(); ++row) {
    const auto r = static_cast<std::int64_t>(row);
    EXPECT_NEAR(read(views.out, 0, r, 0, static_cast<std::int64_t>(dim_of) - 1), out[row], 0.005 * std::abs(out[row]))
        << row;
    if (row < lse.size()) {
      if (std::isinf(lse[row])) {
        EXPECT_EQ(read(views.lse, 0, r, 0), lse[row]) << row;
      } else {
        EXPECT_NEAR(read(views.lse, 0, r, 0), lse[row], 1e-5) << row;
      }
    }
  }
}

constexpr double kNothing = -std::numeric_limits<double>::infinity();

enum class Extent { schedules, everything };

/// Values that hold on every combination.
class PublicValuesEverywhere : public ::testing::TestWithParam<Extent> {
 protected:
  template <class Body>
  void for_cases(const CaseFile& c, Body&& body) {
    GetParam() == Extent::everything ? for_combinations(c, body) : for_each_schedule(c, body);
  }
};

INSTANTIATE_TEST_SUITE_P(EverySchedule, PublicValuesEverywhere, ::testing::Values(Extent::schedules));
INSTANTIATE_TEST_SUITE_P(LongEverything, PublicValuesEverywhere, ::testing::Values(Extent::everything));

TEST_P(PublicValuesEverywhere, P01KeepsTheLastTokenOfAnOddSequence) {
  for (const char* id : {"P01_none", "P01_causal"}) {
    const CaseFile c = read_case(id);
    ProblemTensors tensors = make_tensors(c);
    for_cases(c, [&](const DistributedOptions& options) {
      run_distributed(c.problem, options, tensors.views());
      std::vector<double> out, lse;
      for (int i = 0; i < 7; ++i) {
        const bool causal = c.problem.mask == Mask::causal;
        out.push_back(causal ? 1 + i / 2.0 : 4);
        lse.push_back(std::log(causal ? i + 1 : 7));
      }
      out.insert(out.end(), 3, 0);
      lse.insert(lse.end(), 3, kNothing);
      expect_rows(tensors.views(), out, lse, 8);
    });
  }
}

TEST_P(PublicValuesEverywhere, P02OtherDocumentsKeepTheirBitsWhenOneIsNaN) {
  CaseFile clean = read_case("P02");
  CaseFile poisoned = read_case("P02_poisoned");
  clean.problem.deterministic = poisoned.problem.deterministic = true;
  ProblemTensors a = make_tensors(clean);
  ProblemTensors b = make_tensors(poisoned);
  for_cases(clean, [&](const DistributedOptions& options) {
    run_distributed(clean.problem, options, a.views());
    run_distributed(poisoned.problem, options, b.views());
    for (const auto& [left, right] : {std::pair{a.views().out, b.views().out}, std::pair{a.views().dq, b.views().dq},
                                      std::pair{a.views().dk, b.views().dk}, std::pair{a.views().dv, b.views().dv}}) {
      for_each_element(left, [&](auto batch, auto row, auto head, auto dim) {
        if (row >= 200 && row < 331) return;
        ASSERT_EQ(read(left, batch, row, head, dim), read(right, batch, row, head, dim)) << row;
      });
    }
  });
}

TEST_P(PublicValuesEverywhere, P03InfinityInUnusedRowsStaysThere) {
  for (const char* id : {"P03", "P03_prefill"}) {
    const CaseFile c = read_case(id);
    ProblemTensors tensors = make_tensors(c, std::numeric_limits<double>::infinity());
    const OracleResult want = oracle(c.problem, tensors.views(), 1);
    for_cases(c, [&](const DistributedOptions& options) {
      run_distributed(c.problem, options, tensors.views());
      ASSERT_EQ(misses(c.problem, want, tensors.views()), "");
      expect_no_nan(tensors.views());
    });
  }
}

TEST(PublicValues, LongP04GradientsDoNotGetWorseWithTheRing) {
  for (const char* id : {"P04", "P04_none"}) {
    const CaseFile c = read_case(id);
    ProblemTensors tensors = make_tensors(c);
    const OracleResult want = oracle(c.problem, tensors.views(), 2);
    const Tensors& views = tensors.views();
    std::vector<double> alone;
    for (const int ranks : c.ranks) {
      DistributedOptions options;
      options.ranks = ranks;
      options.plan.schedule = ScheduleKind::p2p;
      run_distributed(c.problem, options, tensors.views());
      ASSERT_EQ(misses(c.problem, want, views), "") << id << " at " << ranks;
      const std::vector<double> error = {rms_error(views.out, want.exact.out), rms_error(views.dq, want.exact.dq),
                                         rms_error(views.dk, want.exact.dk), rms_error(views.dv, want.exact.dv)};
      if (ranks == 1) alone = error;
      for (std::size_t i = 0; i < error.size(); ++i) {
        EXPECT_LE(error[i], 1.1 * alone[i]) << id << " at " << ranks << " ranks, tensor " << i;
      }
    }
  }
}

TEST(PublicValues, P05BackwardReadsItsOwnForwardWhateverRanBetween) {
  for (const char* id : {"P05_fp32", "P05_bf16"}) {
    const CaseFile c = read_case(id);
    ProblemTensors first = make_tensors(c);
    CaseFile other = c;
    other.inputs["seed"] = 999;
    ProblemTensors second = make_tensors(other);
    const OracleResult want = oracle(c.problem, first.views(), 1);
    for (const int ranks : c.ranks) {
      PlanOptions options;
      options.schedule = ScheduleKind::p2p;
      auto group = make_local_group(ranks);
      std::mutex mutex;
      run_ranks(group, [&](Transport& transport) {
        const auto plan = agree_on_plan(c.problem, options, transport);
        LocalTensors mine(*plan, 0);
        LocalTensors others(*plan, 0);
        mine.take(first.views());
        others.take(second.views());
        Attention attention(plan, transport);
        attention.set_poison(true);
        attention.forward(mine.views());
        attention.forward(others.views());
        attention.backward(mine.views());
        attention.backward(mine.views());  // accumulates nothing
        const std::scoped_lock lock(mutex);
        mine.give(first.views());
      });
      EXPECT_EQ(misses(c.problem, want, first.views()), "") << id << " at " << ranks;
    }
  }
}

TEST(PublicValues, P08TheWindowCostsOneHop) {
  const CaseFile c = read_case("P08");
  const Shard shard = make_shard(c.problem, ShardKind::contiguous, 8);
  for (int rank = 0; rank < 8; ++rank) {
    const Program program = make_program(c.problem, shard, {ScheduleKind::p2p, 0, 0}, rank, false);
    for (const Exchange& x : program.exchanges) {
      for (const Transfer& t : x.receives) EXPECT_EQ(t.peer, rank - 1) << to_text(program);
      for (const Transfer& t : x.sends) EXPECT_EQ(t.peer, rank + 1) << to_text(program);
    }
    EXPECT_EQ(program.exchanges.size(), 1U);
    // 127 keys of 64 dims, K and V, in bf16.
    EXPECT_EQ(cost(c.problem, program).bytes_received, rank == 0 ? 0 : 127 * 64 * 2 * 2);
  }
}

TEST(PublicValues, LongP08TheWindowChangesTheResult) {
  const CaseFile c = read_case("P08");
  ProblemTensors tensors = make_tensors(c);
  run_distributed(c.problem, {}, tensors.views());
  for (const std::int64_t left : {std::int64_t{126}, std::int64_t{128}, kInfinity}) {
    Problem other = c.problem;
    other.window.left = left;
    EXPECT_NE(misses(other, oracle(other, tensors.views(), 2), tensors.views()), "") << left;
  }
}

TEST_P(PublicValuesEverywhere, P09TheCornerIsTheOneAskedFor) {
  const auto check = [this](const char* id, const std::vector<double>& out, const std::vector<double>& lse) {
    const CaseFile c = read_case(id);
    ProblemTensors tensors = make_tensors(c);
    for_cases(c, [&](const DistributedOptions& options) {
      run_distributed(c.problem, options, tensors.views());
      expect_rows(tensors.views(), out, lse, 16);
    });
  };
  check("P09_3x128_causal", {1, 1.5, 2}, {0, std::log(2), std::log(3)});
  check("P09_3x128_causal_bottom_right", {63.5, 64, 64.5}, {std::log(126), std::log(127), std::log(128)});
  check("P09_5x2_causal", {1, 1.5, 1.5, 1.5, 1.5}, {0, std::log(2), std::log(2), std::log(2), std::log(2)});
  check("P09_5x2_causal_bottom_right", {0, 0, 0, 1, 1.5}, {kNothing, kNothing, kNothing, 0, std::log(2)});
}

TEST_P(PublicValuesEverywhere, P10TheSinkHasItsGradientOnce) {
  const CaseFile c = read_case("P10");
  ProblemTensors tensors = make_tensors(c);
  const std::vector<double> want = {0.006, 0.083, 0.053, 0.370, -1.743, -1.341, 0.661, -0.006};
  for_cases(c, [&](const DistributedOptions& options) {
    run_distributed(c.problem, options, tensors.views());
    for (int head = 0; head < 8; ++head) {
      EXPECT_NEAR(read(tensors.views().dsink, 0, 0, head), want[static_cast<std::size_t>(head)], 0.01) << head;
    }
  });
}

TEST(PublicValues, P10DroppingTheSinkIsSeen) {
  const CaseFile c = read_case("P10");
  ProblemTensors tensors = make_tensors(c);
  Problem without = c.problem;
  without.sink = Sink::none;
  Tensors views = tensors.views();
  views.dsink = {};
  run_distributed(without, {}, views);
  const std::string missed = misses(c.problem, oracle(c.problem, tensors.views(), 2), views);
  for (const char* tensor : {"out", "lse", "dq", "dk", "dv"}) EXPECT_NE(missed.find(tensor), std::string::npos);
}

}  // namespace
}  // namespace rotunda::testing
