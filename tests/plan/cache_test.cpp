#include "plan/cache.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <functional>
#include <set>
#include <thread>
#include <vector>

#include "rotunda/plan.hpp"

namespace rotunda {
namespace {

const char* const kPackedText =
    "layout=thd cu_q=0,8,24 cu_k=0,8,24 used_q=7,10 used_k=7,10 h_q=4 h_kv=2 d=16 d_v=16 mask=none grad=1";

/// One change of everything that a plan depends on.
struct Variation {
  const char* name;
  std::function<void(Problem&, PlanOptions&, int& rank, int& ranks)> change;
};

const std::vector<Variation>& variations() {
  static const std::vector<Variation> all = {
      {"dtype", [](Problem& p, PlanOptions&, int&, int&) { p.dtype = DType::fp16; }},
      {"layout", [](Problem& p, PlanOptions&, int&, int&) { p = parse_problem("b=2 s_q=12 h_q=4 h_kv=2 d=16"); }},
      {"cu_q",
       [](Problem& p, PlanOptions&, int&, int&) {
         p.cu_q = p.cu_k = {0, 12, 24};
       }},
      {"used_q",
       [](Problem& p, PlanOptions&, int&, int&) {
         p.used_q = {6, 10};
       }},
      {"used_k",
       [](Problem& p, PlanOptions&, int&, int&) {
         p.used_k = {7, 9};
       }},
      {"h_q", [](Problem& p, PlanOptions&, int&, int&) { p.h_q = 8; }},
      {"h_kv", [](Problem& p, PlanOptions&, int&, int&) { p.h_kv = 4; }},
      {"d", [](Problem& p, PlanOptions&, int&, int&) { p.d = 32; }},
      {"d_v", [](Problem& p, PlanOptions&, int&, int&) { p.d_v = 32; }},
      {"mask",
       [](Problem& p, PlanOptions&, int&, int&) {
         p.mask = Mask::causal;
         p.window.right = 0;
       }},
      {"align", [](Problem& p, PlanOptions&, int&, int&) { p.align = Align::bottom_right; }},
      {"window", [](Problem& p, PlanOptions&, int&, int&) { p.window.left = 3; }},
      {"prefix", [](Problem& p, PlanOptions&, int&, int&) { p.prefix = 2; }},
      {"chunk", [](Problem& p, PlanOptions&, int&, int&) { p.chunk = 4; }},
      {"slices",
       [](Problem& p, PlanOptions&, int&, int&) {
         p = parse_problem(
             R"(layout=thd h_q=4 h_kv=2 d=16 slices=[{"batch":0,"q_begin":0,"q_len":4,"k_begin":0,"k_len":4,"q_pos":0,"k_pos":0,"left":null,"right":0}])");
       }},
      {"lens",
       [](Problem& p, PlanOptions&, int&, int&) { p = parse_problem("b=2 s_q=12 lens_q=3,4 h_q=4 h_kv=2 d=16"); }},
      {"scale", [](Problem& p, PlanOptions&, int&, int&) { p.scale = 0.125; }},
      {"sink", [](Problem& p, PlanOptions&, int&, int&) { p.sink = Sink::zero; }},
      {"learnable sink", [](Problem& p, PlanOptions&, int&, int&) { p.sink = Sink::learnable; }},
      {"max_logit", [](Problem& p, PlanOptions&, int&, int&) { p.max_logit = true; }},
      {"deterministic", [](Problem& p, PlanOptions&, int&, int&) { p.deterministic = true; }},
      {"grad", [](Problem& p, PlanOptions&, int&, int&) { p.grad = false; }},
      {"rank", [](Problem&, PlanOptions&, int& rank, int&) { rank = 1; }},
      {"ranks", [](Problem&, PlanOptions&, int&, int& ranks) { ranks = 3; }},
      {"schedule", [](Problem&, PlanOptions& o, int&, int&) { o.schedule = ScheduleKind::p2p; }},
      {"backward schedule", [](Problem&, PlanOptions& o, int&, int&) { o.backward_schedule = ScheduleKind::a2a; }},
      {"mixes", [](Problem&, PlanOptions& o, int&, int&) { o.mixes = true; }},
      {"inner", [](Problem&, PlanOptions& o, int&, int&) { o.inner = 2; }},
      {"head groups", [](Problem&, PlanOptions& o, int&, int&) { o.head_groups = 1; }},
      {"shard", [](Problem&, PlanOptions& o, int&, int&) { o.shard = ShardKind::balanced; }},
      {"chunk size", [](Problem&, PlanOptions& o, int&, int&) { o.chunk_size = 2; }},
      {"kernel", [](Problem&, PlanOptions& o, int&, int&) { o.kernel = "reference"; }},
      {"transport", [](Problem&, PlanOptions& o, int&, int&) { o.transport = "local"; }},
      {"shard_for", [](Problem&, PlanOptions& o, int&, int&) { o.shard_for = "s_q=24 h_q=1 d=1"; }},
      {"device", [](Problem&, PlanOptions& o, int&, int&) { o.device = Device::Kind::cpu; }},
      {"kernel scratch", [](Problem&, PlanOptions& o, int&, int&) { o.kernel_scratch = 1; }},
      {"threads", [](Problem&, PlanOptions& o, int&, int&) { o.threads = 3; }},
      {"machine", [](Problem&, PlanOptions& o, int&, int&) { o.machine = Machine{.name = "another"}; }},
  };
  return all;
}

TEST(PlanCache, EveryKeyThatMattersMakesAnotherPlan) {
  const auto base = cached_plan(parse_problem(kPackedText), {}, 0, 4);
  EXPECT_EQ(cached_plan(parse_problem(kPackedText), {}, 0, 4), base);
  std::set<std::string> keys = {plan_cache_key(parse_problem(kPackedText), {}, 0, 4)};
  for (const Variation& variation : variations()) {
    Problem problem = parse_problem(kPackedText);
    PlanOptions options;
    int rank = 0;
    int ranks = 4;
    variation.change(problem, options, rank, ranks);
    normalize(problem);
    EXPECT_TRUE(keys.insert(plan_cache_key(problem, options, rank, ranks)).second) << variation.name;
    const auto other = cached_plan(problem, options, rank, ranks);
    EXPECT_NE(other, base) << variation.name;
    EXPECT_EQ(cached_plan(problem, options, rank, ranks), other) << variation.name;
  }
}

TEST(PlanCache, WhatIsDisabledIsPartOfTheKey) {
  const Problem problem = parse_problem(kPackedText);
  const std::string before = plan_cache_key(problem, {}, 0, 2);
  ASSERT_EQ(setenv("ROTUNDA_DISABLE", "cudnn", 1), 0);
  EXPECT_NE(plan_cache_key(problem, {}, 0, 2), before);
  unsetenv("ROTUNDA_DISABLE");
}

TEST(PlanCache, ALengthChangedInPlaceIsAnotherPlan) {  // P14
  Problem problem = parse_problem("layout=thd cu_q=0,16,32,48,64 h_q=4 h_kv=2 d=64 mask=causal grad=1");
  const auto first = cached_plan(problem, {}, 0, 2);
  problem.cu_q = problem.cu_k = {0, 5, 5, 40, 64};
  problem.used_q = problem.used_k = {5, 0, 35, 24};
  const auto second = cached_plan(problem, {}, 0, 2);
  EXPECT_NE(second, first);
  EXPECT_NE(second->hash, first->hash);
}

TEST(Memo, MakesAValueOnceForManyThreads) {
  Memo<int> memo(8);
  std::atomic<int> made = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&] { EXPECT_EQ(*memo.get("key", [&] { return std::make_shared<const int>(++made); }), 1); });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(made, 1);
}

TEST(Memo, ForgetsTheLeastRecentlyUsedAndWhatFailed) {
  Memo<int> memo(2);
  int made = 0;
  const auto get = [&](const char* key) { return *memo.get(key, [&] { return std::make_shared<const int>(++made); }); };
  get("a");
  get("b");
  get("a");
  get("c");  // b goes
  EXPECT_EQ(get("a"), 1);
  EXPECT_EQ(get("b"), 4);
  EXPECT_EQ(memo.size(), 2U);
  EXPECT_THROW((void)memo.get("d", []() -> std::shared_ptr<const int> { throw Error(ErrorKind::internal, "no"); }),
               Error);
  EXPECT_EQ(get("d"), 5);
}

}  // namespace
}  // namespace rotunda
