// Planted faults: the checks that the project relies on must see each of them.
#include <gtest/gtest.h>

#include <cmath>

#include "base/half.hpp"
#include "kernel/kernel.hpp"
#include "support/case_file.hpp"
#include "support/distributed.hpp"
#include "support/results.hpp"

namespace rotunda::testing {
namespace {

const char* const kProblem = "dtype=bf16 layout=bshd b=1 s_q=256 h_q=4 h_kv=2 d=64 mask=causal window=60,0 grad=1";

/// Runs on 4 ranks with a plan that `mutate` has changed, and says which tensors miss the bar.
template <class Mutate>
std::string run_mutated(const std::string& text, Mutate&& mutate) {
  const Problem problem = parse_problem(text);
  ProblemTensors tensors(problem, {.seed = 7});
  const OracleResult want = oracle(problem, tensors.views(), 2);
  auto group = make_local_group(4);
  std::mutex mutex;
  run_ranks(group, [&](Transport& transport) {
    PlanOptions options;
    options.schedule = ScheduleKind::p2p;
    options.shard = ShardKind::contiguous;
    auto plan = std::make_shared<Plan>(*make_plan(problem, options, transport.rank(), transport.size()));
    mutate(*plan);
    LocalTensors local(*plan, 0);
    local.take(tensors.views());
    Attention attention(plan, transport);
    attention.forward(local.views());
    attention.backward(local.views());
    const std::scoped_lock lock(mutex);
    local.give(tensors.views());
  });
  return misses(problem, want, tensors.views());
}

TEST(Mutations, NoneIsFine) {
  EXPECT_EQ(run_mutated(kProblem, [](Plan&) {}), "");
}

TEST(Mutations, ScaleOffByOnePercent) {
  EXPECT_NE(run_mutated(kProblem, [](Plan& plan) { plan.problem.scale *= 1.01; }), "");
}

TEST(Mutations, WindowOffByOne) {
  for (const int by : {-1, 1}) {
    const std::string missed = run_mutated(kProblem, [&](Plan& plan) {
      for (Program* program : {&plan.forward, &*plan.backward}) {
        for (Step& step : program->steps) {
          if (auto* attend = std::get_if<Attend>(&step)) {
            for (Slice& slice : attend->slices) {
              if (slice.left != kInfinity) slice.left += by;
            }
          }
          if (auto* back = std::get_if<AttendBackward>(&step)) {
            for (Slice& slice : back->slices) {
              if (slice.left != kInfinity) slice.left += by;
            }
          }
        }
      }
    });
    EXPECT_NE(missed, "") << by;
  }
}

TEST(Mutations, DroppedMerge) {
  // The second block starts afresh instead of resuming: what the first one gave is lost.
  EXPECT_NE(run_mutated(kProblem,
                        [](Plan& plan) {
                          for (Step& step : plan.forward.steps) {
                            if (auto* attend = std::get_if<Attend>(&step)) attend->init = true;
                          }
                        }),
            "");
}

TEST(Mutations, DroppedGradientOfAPeer) {
  EXPECT_NE(run_mutated(kProblem,
                        [](Plan& plan) {
                          std::erase_if(plan.backward->steps,
                                        [](const Step& step) { return std::holds_alternative<Add>(step); });
                        }),
            "");
}

TEST(Mutations, StaleKeysInOneStep) {
  // The remote block is attended with the rank's own keys, as if the buffer had never been filled.
  const std::string text = "dtype=bf16 layout=bshd b=1 s_q=256 h_q=4 h_kv=2 d=64 mask=none grad=1";
  EXPECT_NE(run_mutated(text,
                        [](Plan& plan) {
                          Attend* first = nullptr;
                          for (Step& step : plan.forward.steps) {
                            auto* attend = std::get_if<Attend>(&step);
                            if (attend == nullptr) continue;
                            if (first == nullptr) {
                              first = attend;
                            } else {
                              attend->k = first->k;
                              attend->v = first->v;
                              return;
                            }
                          }
                        }),
            "");
}

/// The ring as others run it: every step's O and gradients in 16 bits, merged and added in 16 bits.
double rms_with_16_bit_partials(const Problem& problem, Tensors& views, int ranks, const OracleResult& want) {
  const auto rounded = [&](float* data, std::int64_t count) {
    for (std::int64_t i = 0; i < count; ++i) data[i] = static_cast<float>(bf16_t(data[i]));
  };
  ThreadPool threads(1);
  const Kernel& kernel = *find_kernel("cpu");
  HostBuffer scratch(kernel.workspace_bytes(problem, whole_call(problem, {}, false)));
  std::vector<float> acc(static_cast<std::size_t>(views.out.elements()));
  TensorView acc_view = make_view(acc.data(), DType::fp32, Layout::bshd, 1, problem.s_q, problem.h_q, problem.d_v);
  for (int step = 0; step < ranks; ++step) {
    const std::int64_t block = problem.s_k / ranks;
    const Slice slice{0, 0, problem.s_q, step * block, block, 0, step * block, kInfinity, kInfinity};
    ForwardArgs args;
    args.slices = {&slice, 1};
    args.q = views.q;
    args.k = views.k;
    args.v = views.v;
    args.acc = acc_view;
    args.lse = views.lse;
    args.heads.group = problem.h_q / problem.h_kv;
    args.scale = problem.scale;
    args.init = step == 0;
    args.last = false;
    kernel.forward(args, {threads, {scratch.data(), static_cast<std::size_t>(scratch.bytes())}});
    rounded(acc.data(), acc_view.elements());
  }
  return rms_error(acc_view, want.exact.out);
}

TEST(Mutations, LongSixteenBitPartialsAtEightRanks) {
  const CaseFile c = read_case("P04_none");
  Problem problem = c.problem;
  problem.s_q = problem.s_k = 1024;
  ProblemTensors tensors(problem, {.seed = 104});
  const OracleResult want = oracle(problem, tensors.views(), 2);
  DistributedOptions options;
  options.ranks = 8;
  options.plan.schedule = ScheduleKind::p2p;
  run_distributed(problem, options, tensors.views());
  const double ours = rms_error(tensors.views().out, want.exact.out);
  const double alone = rms_with_16_bit_partials(problem, tensors.views(), 1, want);
  const double partials = rms_with_16_bit_partials(problem, tensors.views(), 8, want);
  EXPECT_LE(ours, 1.1 * alone);
  EXPECT_GT(partials, 1.1 * alone);
}

}  // namespace
}  // namespace rotunda::testing
