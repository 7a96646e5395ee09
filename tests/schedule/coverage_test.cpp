// Schedules without tensors: every visible pair is computed exactly once and ends up with its owner, nothing is read
// that has not arrived, nothing arrives that nobody reads, and nobody waits for ever.
#include <fmt/format.h>
#include <gtest/gtest.h>

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
    const auto shard_kind = random.one_of({ShardKind::contiguous, ShardKind::dual_chunk, ShardKind::dual_chunk_doc,
                                           ShardKind::striped, ShardKind::balanced});
    ScheduleOptions options;
    options.kind =
        random.one_of({ScheduleKind::p2p, ScheduleKind::all_gather, ScheduleKind::a2a, ScheduleKind::a2a_p2p});
    options.head_groups = static_cast<int>(random.between(0, 6));
    options.narrow_gradients = random.between(0, 1) == 1;
    options.sends_out = random.between(0, 1) == 1;
    const bool backward = random.percent(50);
    const auto delivery = random.one_of({Delivery::eager, Delivery::lazy});
    SCOPED_TRACE(fmt::format("seed {} ranks {} {} {} groups {} {} {}: {}", seed, ranks, to_string(options.kind),
                             to_string(shard_kind), options.head_groups, backward ? "backward" : "forward",
                             delivery == Delivery::eager ? "eager" : "lazy", to_text(problem)));
    const Shard shard = make_shard(problem, shard_kind, ranks, random.between(0, 3));
    Simulation simulation(problem, shard, options, backward, delivery);
    ASSERT_EQ(simulation.run(), "");
    ASSERT_TRUE(covered_once(problem, simulation, backward));
    ASSERT_EQ(simulation.unused_rows(), 0);
  }
}

}  // namespace
}  // namespace rotunda::testing
