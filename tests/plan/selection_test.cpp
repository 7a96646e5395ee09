// What a plan chooses, and what it says of the rest.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>

#include "kernel/reference/reference_kernel.hpp"
#include "plan/selection.hpp"
#include "rotunda/info.hpp"
#include "rotunda/plan.hpp"
#include "support/error_test.hpp"

namespace rotunda {
namespace {

const char* const kText = "b=1 s_q=4096 h_q=8 h_kv=2 d=64 mask=causal grad=1";

std::string reason(const Plan& plan, const std::string& what) {
  const auto found = std::find_if(plan.refusals.begin(), plan.refusals.end(),
                                  [&](const Refusal& refusal) { return refusal.what == what; });
  return found == plan.refusals.end() ? "" : found->reason;
}

void expect_refused(const PlanOptions& options, ErrorKind kind, const std::string& word, int ranks = 4) {
  EXPECT_ERROR((void)make_plan(parse_problem(kText), options, 0, ranks), kind, word);
}

TEST(Selection, GivesAReasonForEverythingNotChosen) {
  const auto plan = make_plan(parse_problem(kText), {}, 0, 4);
  EXPECT_EQ(plan->kernel, "cpu");
  EXPECT_EQ(plan->transport, "local");
  EXPECT_NE(reason(*plan, "kernel reference"), "");
  EXPECT_NE(reason(*plan, "transport nccl"), "");
  for (const char* shard : {"dual_chunk_doc", "striped", "balanced"})
    EXPECT_NE(reason(*plan, fmt::format("shard {}", shard)), "");
  const auto schedules = std::count_if(plan->refusals.begin(), plan->refusals.end(), [](const Refusal& refusal) {
    return refusal.reason.find("predicted") != std::string::npos;
  });
  EXPECT_EQ(schedules, 7);  // 4 schedules on 2 shards, less the one taken
}

TEST(Selection, BalancesACausalMask) {
  EXPECT_EQ(make_plan(parse_problem(kText), {}, 0, 4)->shard.kind, ShardKind::dual_chunk);
}

TEST(Selection, SaysWhichInnerItTook) {
  PlanOptions options;
  options.schedule = ScheduleKind::a2a_p2p;
  const auto plan = make_plan(parse_problem(kText), options, 0, 4);
  EXPECT_EQ(plan->forward_schedule.inner, 2);
  EXPECT_EQ(plan->summary(), "a2a_p2p inner 2, dual_chunk, cpu, local");
}

TEST(Selection, KeepsAWindowContiguous) {
  const Problem problem = parse_problem("b=1 s_q=4096 h_q=8 h_kv=2 d=64 mask=causal window=63,0");
  EXPECT_EQ(make_plan(problem, {}, 0, 4)->shard.kind, ShardKind::contiguous);
}

TEST(Selection, KeepsDocumentsWhole) {
  const Problem problem = parse_problem("layout=thd cu_q=0,512,1024,1536,2048 h_q=8 h_kv=2 d=64 mask=causal");
  const auto plan = make_plan(problem, {}, 0, 4);
  EXPECT_EQ(cost(problem, plan->forward).bytes_received, 0) << plan->summary();
}

TEST(Selection, TakesTheShardOfAnotherProblem) {
  const std::string documents = "layout=thd cu_q=0,100,1500,2048 h_q=8 h_kv=2 d=64 ";
  PlanOptions options;
  options.shard = ShardKind::balanced;
  options.shard_for = documents + "mask=causal";
  const Problem windowed = parse_problem(documents + "mask=causal window=63,0");
  const auto plan = make_plan(windowed, options, 0, 4);
  EXPECT_EQ(plan->shard, make_shard(parse_problem(options.shard_for), ShardKind::balanced, 4));
  EXPECT_NE(plan->shard, make_shard(windowed, ShardKind::balanced, 4));
  options.shard_for = "s_q=2000 h_q=1 d=1";
  EXPECT_ERROR((void)make_plan(windowed, options, 0, 4), ErrorKind::bad_input, "made for 2000 queries");
}

TEST(Selection, RefusesNegativeNumbers) {
  PlanOptions groups, chunks, threads;
  groups.head_groups = -1;
  chunks.chunk_size = -1;
  threads.threads = -1;
  expect_refused(groups, ErrorKind::bad_input, "head_groups=-1");
  expect_refused(chunks, ErrorKind::bad_input, "chunk-size=-1");
  expect_refused(threads, ErrorKind::bad_input, "threads=-1");
}

TEST(Selection, RefusesWithEveryReason) {
  PlanOptions options;
  options.device = Device::Kind::cpu;
  options.kernel = "fa4";  // not in this build, or not for CPUs
  expect_refused(options, ErrorKind::unsupported, "fa4");
  options.kernel = "fastest";
  expect_refused(options, ErrorKind::bad_input, "cpu, reference");
  options = {};
  options.transport = "nccl";
  expect_refused(options, ErrorKind::unsupported, "nccl");
  options.transport = "pigeon";
  expect_refused(options, ErrorKind::bad_input, "allowed: auto, local");
  options = {};
  options.device = Device::Kind::cuda;
  expect_refused(options, ErrorKind::unsupported, "cuda");
  options = {};
  options.schedule = ScheduleKind::a2a_p2p;
  options.inner = 3;
  expect_refused(options, ErrorKind::bad_input, "inner=3 does not divide 4 ranks");
  options.schedule = ScheduleKind::p2p;
  options.inner = 2;
  expect_refused(options, ErrorKind::bad_input, "inner=2 is for schedule a2a_p2p");
  options = {};
  options.shard = ShardKind::striped;
  options.chunk_size = 8;
  expect_refused(options, ErrorKind::bad_input, "chunk-size=8 is for shard balanced");
  expect_refused({}, ErrorKind::bad_input, "rank 0 of 0 ranks", 0);
}

TEST(Selection, DisabledKernelsSaySo) {
  ASSERT_EQ(setenv("ROTUNDA_DISABLE", "cpu", 1), 0);
  expect_refused({}, ErrorKind::unsupported, "no kernel serves this problem: ");
  expect_refused({}, ErrorKind::unsupported, "cpu disabled by ROTUNDA_DISABLE");  // builds with CUDA name more kernels
  ASSERT_EQ(setenv("ROTUNDA_DISABLE", "local", 1), 0);
  expect_refused({}, ErrorKind::unsupported, "local (disabled by ROTUNDA_DISABLE)");
  unsetenv("ROTUNDA_DISABLE");
}

TEST(Selection, MixedKeepsBothSchedules) {
  PlanOptions options;
  options.schedule = ScheduleKind::p2p;
  options.backward_schedule = ScheduleKind::a2a;
  const auto plan = make_plan(parse_problem(kText), options, 1, 4);
  EXPECT_EQ(plan->forward_schedule.kind, ScheduleKind::p2p);
  EXPECT_EQ(plan->backward_schedule.kind, ScheduleKind::a2a);
  EXPECT_EQ(plan->summary(), "p2p / a2a, dual_chunk, cpu, local");
}

TEST(Selection, MixingTakesTheFasterPair) {
  // One KV head of eight query heads: KV is cheap to send round, and in backward queries and their gradients are dear.
  const Problem problem = parse_problem("s_q=4096 h_q=64 h_kv=8 d=128 mask=causal grad=1");
  PlanOptions options;
  options.device = Device::Kind::cpu;
  const auto chosen = [&](bool mixes) {
    options.mixes = mixes;
    const auto plan = make_plan(problem, options, 0, 8);
    const Machine machine;
    return evaluate(problem, plan->shard, plan->forward_schedule, plan->backward_schedule, machine).seconds;
  };
  EXPECT_LE(chosen(true), chosen(false));
  options.mixes = true;
  options.schedule = ScheduleKind::a2a;
  const auto plan = make_plan(problem, options, 0, 8);
  EXPECT_EQ(plan->forward_schedule.kind, ScheduleKind::a2a);
  const auto mixed = std::count_if(plan->refusals.begin(), plan->refusals.end(),
                                   [](const Refusal& r) { return r.what.find("a2a / p2p on") == 0; });
  EXPECT_GT(mixed, 0) << "pairs that were weighed are listed";
}

/// A direction whose calls are grouped by heads is weighed for itself, also where the other has nothing to weigh.
TEST(Selection, PairsThatWereAskedForAreTaken) {
  const Machine machine{"two GPUs", 5e14, 3e11, 1.5e-5, true, 3e12, 5e-5};
  PlanOptions options;
  options.shard = ShardKind::dual_chunk;
  for (const ScheduleKind forward : {ScheduleKind::all_gather, ScheduleKind::a2a}) {
    for (const bool turned : {false, true}) {
      options.schedule = turned ? ScheduleKind::p2p : forward;
      options.backward_schedule = turned ? forward : ScheduleKind::p2p;
      const Choice choice = choose_schedule(parse_problem(kText), options, 2, reference_kernel(), Device{}, machine);
      EXPECT_EQ(choice.forward.kind, options.schedule);
      EXPECT_EQ(choice.backward.kind, options.backward_schedule);
    }
  }
}

/// Seconds of all_gather on two ranks of a machine that copies beside its work, with the keys in so many head groups.
double seconds_gathered(const std::string& problem, ShardKind shard, int head_groups) {
  const Machine machine{"two GPUs", 5e14, 3e11, 1.5e-5, true, 3e12, 5e-5};
  const Problem parsed = parse_problem(problem + " h_q=32 d=128 mask=causal grad=1");
  const ScheduleOptions options{ScheduleKind::all_gather, 0, head_groups, true};
  return evaluate(parsed, make_shard(parsed, shard, 2), options, options, machine).seconds;
}

TEST(Evaluate, HeadGroupsPayWhereMuchTravels) {
  constexpr int kPipelined = 0, kOne = 1;
  const std::string documents = "layout=thd cu_q=0,1028,3100,7196,15696,18000,21096,27192,32768";
  EXPECT_LT(seconds_gathered("s_q=32768", ShardKind::dual_chunk, kPipelined),
            seconds_gathered("s_q=32768", ShardKind::dual_chunk, kOne));
  EXPECT_GT(seconds_gathered(documents, ShardKind::balanced, kPipelined),
            seconds_gathered(documents, ShardKind::balanced, kOne));
  EXPECT_GT(seconds_gathered("s_q=2048", ShardKind::dual_chunk, kPipelined),
            seconds_gathered("s_q=2048", ShardKind::dual_chunk, kOne));
}

TEST(Evaluate, SeesTheFewRanksThatHaveHeads) {
  for (const int heads : {1, 4, 32, 100}) {
    const Problem problem = parse_problem(fmt::format("s_q=2048 h_q={} d=8", heads));
    const Shard shard = make_shard(problem, ShardKind::contiguous, 1024);
    const ScheduleOptions a2a{ScheduleKind::a2a};
    EXPECT_EQ(evaluate(problem, shard, a2a, a2a, Machine{}).forward_max.pairs, 2048.0 * 2048) << heads;
  }
}

TEST(Info, ListsTheContractsVariables) {
  const auto variables = environment_variables();
  for (const char* name : {"ROTUNDA_DISABLE", "ROTUNDA_LOG", "ROTUNDA_TIMEOUT", "ROTUNDA_CUDNN_PATH", "ROTUNDA_CACHE",
                           "ROTUNDA_TEST_REQUIRED"}) {
    EXPECT_TRUE(std::any_of(variables.begin(), variables.end(), [&](const Variable& v) { return v.name == name; }))
        << name;
  }
}

}  // namespace
}  // namespace rotunda
