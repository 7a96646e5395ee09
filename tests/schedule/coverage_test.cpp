// Schedules without tensors: every visible pair is computed exactly once and ends up with its owner, nothing is read
// that has not arrived, nothing arrives that nobody reads, and nobody waits for ever.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <variant>

#include "rotunda/problem.hpp"
#include "support/random_problem.hpp"
#include "support/simulate.hpp"
#include "support/visible.hpp"

namespace rotunda::testing {
namespace {

/// Whether query token i sees key token j of a batch entry of the buffers.
bool sees(const Problem& p, std::int64_t batch, std::int64_t i, std::int64_t j) {
  if (p.layout != Layout::thd || p.slices) return visible(p, batch, i, j);
  for (std::int64_t entry = 0; entry < p.b; ++entry) {
    const EntryRows rows = entry_rows(p, entry);
    const bool here = i >= rows.q_begin && i < rows.q_begin + rows.q_rows;
    if (here && j >= rows.k_begin && j < rows.k_begin + rows.k_rows) {
      return visible(p, entry, i - rows.q_begin, j - rows.k_begin);
    }
  }
  return false;
}

::testing::AssertionResult covered_once(const Problem& p, const Simulation& simulation, bool backward) {
  for (std::int64_t batch = 0; batch < p.batches(); ++batch) {
    for (std::int64_t i = 0; i < p.s_q; ++i) {
      for (std::int64_t j = 0; j < p.s_k; ++j) {
        const int want = sees(p, batch, i, j) ? 1 : 0;
        for (int head = 0; head < p.h_q; ++head) {
          const int in_query = simulation.in_query_result(batch, head, i, j);
          const int in_key = backward ? simulation.in_key_result(batch, head, i, j) : want;
          if (in_query == want && in_key == want) continue;
          return ::testing::AssertionFailure() << fmt::format(
                     "pair ({}, {}) of batch {} head {}: visible {}, in the query's result {}, in the key's {}", i, j,
                     batch, head, want, in_query, in_key);
        }
      }
    }
  }
  return ::testing::AssertionSuccess();
}

/// Runs a problem's programs of one direction on labels.
void check(const Problem& problem, const Shard& shard, const ScheduleOptions& options, bool backward,
           Delivery delivery) {
  Simulation simulation(problem, shard, options, backward, delivery);
  ASSERT_EQ(simulation.run(), "");
  ASSERT_TRUE(covered_once(problem, simulation, backward));
  ASSERT_EQ(simulation.unused_rows(), 0);
}

constexpr int kProblems = 1500;

TEST(Coverage, EveryVisiblePairExactlyOnce) {
  for (std::uint64_t seed = 0; seed < kProblems; ++seed) {
    Random random(seed * 7919 + 13);
    RandomLimits limits;
    limits.max_work = 1 << 10;
    Problem problem = random_problem(seed, limits);
    problem.grad = true;
    if (random.percent(50)) {  // enough heads for several groups on every rank
      problem.h_kv = static_cast<int>(random.between(1, 16));
      problem.h_q = problem.h_kv * static_cast<int>(random.between(1, 3));
    }
    const int ranks = static_cast<int>(random.between(1, 9));
    const auto shard_kind = random.one_of(kShardKinds);
    ScheduleOptions options;
    options.kind = random.one_of(kScheduleKinds);
    options.head_groups = static_cast<int>(random.between(0, 6));
    options.narrow_gradients = random.between(0, 1) == 1;
    options.sends_out = random.between(0, 1) == 1;
    const bool backward = random.percent(50);
    const auto delivery = random.one_of({Delivery::eager, Delivery::lazy});
    SCOPED_TRACE(fmt::format("seed {} ranks {} {} {} groups {} {} {}: {}", seed, ranks, to_string(options.kind),
                             to_string(shard_kind), options.head_groups, backward ? "backward" : "forward",
                             delivery == Delivery::eager ? "eager" : "lazy", to_text(problem)));
    const Shard shard = make_shard(problem, shard_kind, ranks, random.between(0, 3));
    ASSERT_NO_FATAL_FAILURE(check(problem, shard, options, backward, delivery));
  }
}

/// Whether calls of the program attend parts of the rank's queries.
bool has_parts(const Program& program) {
  const auto is_part = [&](const auto& step) {
    if constexpr (requires { step.slices; }) {
      return step.q.rows < program.buffer(step.q).rows;
    }
    return false;
  };
  return std::any_of(program.steps.begin(), program.steps.end(),
                     [&](const Step& step) { return std::visit(is_part, step); });
}

TEST(Coverage, DocumentsThatStayAtHome) {
  int forward_parts = 0, backward_parts = 0;  // programs that have some
  for (std::uint64_t seed = 0; seed < kProblems; ++seed) {
    Random random(seed * 7907 + 17);
    RandomLimits limits;
    limits.max_work = 1 << 11;
    Problem problem = random_documents(seed, limits);
    problem.grad = true;
    const int ranks = static_cast<int>(random.between(2, 5));
    ScheduleOptions options;
    options.head_groups = static_cast<int>(random.between(0, 2));
    options.narrow_gradients = random.percent(50);
    options.sends_out = random.percent(50);
    const bool backward = random.percent(50);
    const auto delivery = random.one_of({Delivery::eager, Delivery::lazy});
    const auto shard_kind = random.percent(80) ? ShardKind::balanced : ShardKind::contiguous;
    const Shard shard = make_shard(problem, shard_kind, ranks, random.between(0, 9));
    SCOPED_TRACE(fmt::format("seed {} ranks {} {} groups {} {}: {}", seed, ranks, to_string(shard_kind),
                             options.head_groups, backward ? "backward" : "forward", to_text(problem)));
    ASSERT_NO_FATAL_FAILURE(check(problem, shard, options, backward, delivery));
    for (int rank = 0; rank < ranks; ++rank) {
      const bool parts = has_parts(make_program(problem, shard, options, rank, backward));
      (backward ? backward_parts : forward_parts) += parts ? 1 : 0;
    }
  }
  EXPECT_GT(forward_parts, kProblems / 10);
  EXPECT_GT(backward_parts, kProblems / 10);
}

}  // namespace
}  // namespace rotunda::testing
