// Suite: the running state (several calls, parts of heads), bits, NaN, and random slice lists.
#include <fmt/format.h>

#include <cmath>
#include <random>

#include "kernel_driver.hpp"
#include "kernel_suite.hpp"

namespace rotunda {
namespace {

using testing::Call;
using testing::KernelDriver;
using testing::kNaN;

TEST_P(KernelSuite, KeysInSeveralCallsEqualOneCall) {
  if (!kernel().capabilities().accumulates) GTEST_SKIP() << kernel().name() << " does not accumulate";
  for (const char* text : {"dtype=fp32 b=2 s_q=65 h_q=4 h_kv=2 d=40 mask=causal max_logit=1 grad=1",
                           "dtype=fp32 s_q=63 s_k=130 h_q=2 d=64 d_v=32 mask=none window=20,9 max_logit=1 grad=1",
                           "dtype=bf16 layout=thd cu_q=0,40,41,130 h_q=4 h_kv=1 d=64 mask=causal grad=1"}) {
    const Problem problem = KernelSuite::problem(text);
    if (!testing::serves(kernel(), problem)) continue;
    KernelDriver once(kernel(), problem, {.seed = 1});
    once.run();
    const OracleResult want = oracle(problem, once.tensors(), 1);
    for (const int pieces : {2, 3, 8, 70}) {
      SCOPED_TRACE(fmt::format("{} in {} calls", text, pieces));
      KernelDriver several(kernel(), problem, {.seed = 1});
      several.run(testing::cut_keys(problem, mask_slices(problem), pieces));
      testing::expect_right(several, want);
      if (problem.dtype != DType::bf16) testing::expect_close(once, several, reordering(problem));
    }
  }
}

TEST_P(KernelSuite, CallsInAnyOrderAndWithoutSlices) {
  if (!kernel().capabilities().accumulates) GTEST_SKIP() << kernel().name() << " does not accumulate";
  const Problem problem = KernelSuite::problem("dtype=bf16 s_q=65 h_q=2 d=64 mask=causal max_logit=1 grad=1");
  if (!testing::serves(kernel(), problem)) GTEST_SKIP() << kernel().name() << " refuses the problem";
  std::vector<Call> calls = testing::cut_keys(problem, mask_slices(problem), 4);
  std::reverse(calls.begin(), calls.end());
  calls.insert(calls.begin(), Call{{}, 0, 0});
  calls.push_back(Call{{}, 0, 0});
  KernelDriver driver(kernel(), problem, {.seed = 2});
  driver.run(calls);
  testing::expect_right(driver);
}

TEST_P(KernelSuite, QueryRowsMayBeSplitAmongSlices) {
  if (!kernel().capabilities().slices) GTEST_SKIP() << kernel().name() << " takes no slice lists";
  const Problem problem =
      KernelSuite::problem("dtype=fp32 b=2 s_q=130 h_q=4 h_kv=2 d=40 mask=causal window=70,0 grad=1");
  if (!testing::serves(kernel(), problem)) GTEST_SKIP() << kernel().name() << " refuses the problem";
  KernelDriver whole(kernel(), problem, {.seed = 3});
  whole.run();
  for (const std::int64_t step : {1, 7, 64}) {
    SCOPED_TRACE(step);
    KernelDriver split(kernel(), problem, {.seed = 3});
    Call call = split.whole();
    call.slices = testing::cut_rows(call.slices, step);
    std::reverse(call.slices.begin(), call.slices.end());
    split.run({call});
    testing::expect_right(split);
    testing::expect_close(whole, split, reordering(problem));
  }
}

TEST_P(KernelSuite, BuffersMayHoldAPartOfTheHeads) {
  struct Part {
    const char* heads;
    int first, count;
  };
  for (const Part& part : {Part{"h_q=8 h_kv=4", 2, 4}, Part{"h_q=8 h_kv=4", 3, 2}, Part{"h_q=6 h_kv=2", 2, 3},
                           Part{"h_q=5 h_kv=5", 4, 1}, Part{"h_q=6 h_kv=1", 1, 5}}) {
    SCOPED_TRACE(fmt::format("{}: query heads {} to {}", part.heads, part.first, part.first + part.count - 1));
    const Problem problem =
        KernelSuite::problem(fmt::format("dtype=fp32 s_q=65 {} d=32 mask=causal grad=1", part.heads));
    if (!testing::serves(kernel(), problem)) continue;
    KernelDriver all(kernel(), problem, {.seed = 4});
    all.run();
    KernelDriver some(kernel(), problem, {.seed = 4});
    some.restrict_heads(part.first, part.count);
    some.run();
    Tensors& want = all.tensors();
    for (auto field : {&Tensors::out, &Tensors::lse, &Tensors::dq}) {
      if ((want.*field).data == nullptr) continue;
      const TensorView expected = (want.*field).narrow_heads(part.first, part.count);
      EXPECT_LE(testing::largest_difference(expected, some.tensors().*field), reordering(problem));
    }
    if (!problem.grad) continue;
    // The other parts add what is missing to dk, dv of a KV head that several parts read.
    KernelDriver rest(kernel(), problem, {.seed = 4});
    rest.run();
    testing::fill(rest.tensors().dk, 0);
    testing::fill(rest.tensors().dv, 0);
    const Tensors full = rest.tensors();
    const HeadMap map = rest.heads;
    for (int first = 0; first < problem.h_q; first += 2) {
      rest.restrict_heads(first, std::min(2, problem.h_q - first));
      rest.backward_call(rest.whole(), true, false);
      rest.use(full, map);
    }
    EXPECT_LE(testing::largest_difference(want.dk, full.dk), reordering(problem));
    EXPECT_LE(testing::largest_difference(want.dv, full.dv), reordering(problem));
  }
}

TEST_P(KernelSuite, NaNReachesOnlyRowsThatSeeIt) {
  const Problem problem = KernelSuite::problem("dtype=bf16 s_q=130 h_q=4 h_kv=2 d=40 mask=causal window=20,0 grad=1");
  if (!testing::serves(kernel(), problem)) GTEST_SKIP() << kernel().name() << " refuses the problem";
  if (!kernel().capabilities().confines_nan) GTEST_SKIP() << kernel().name() << " does not confine a NaN";
  for (const auto field : {&Tensors::q, &Tensors::k, &Tensors::v}) {
    for (const std::int64_t row : {0, 31, 64, 129}) {
      SCOPED_TRACE(row);
      KernelDriver driver(kernel(), problem, {.seed = 5});
      testing::write(driver.tensors().*field, 0, row, 1, 39, kNaN);
      driver.run();
      testing::expect_right(driver);
      const bool is_q = field == &Tensors::q;
      EXPECT_TRUE(std::isnan(testing::read(driver.tensors().out, 0, row, is_q ? 1 : 2, 39))) << "a NaN was hidden";
      if (field == &Tensors::v) continue;  // P does not depend on v: its NaN is in out, delta and dS alone
      const Tensors& t = driver.tensors();
      EXPECT_TRUE(std::isnan(testing::read(t.lse, 0, row, is_q ? 1 : 2))) << "a NaN was hidden from lse";
      for (const TensorView& gradient : {t.dk, t.dv}) {
        EXPECT_TRUE(std::isnan(testing::read(gradient, 0, row, is_q ? 0 : 1, 7))) << "a NaN was hidden from dk or dv";
      }
    }
  }
}

/// The middle one of three documents is all NaN. Where a kernel does not confine a NaN to documents, they share no
/// tile.
TEST_P(KernelSuite, PoisonedDocumentLeavesTheOthersBits) {
  const bool confines = kernel().capabilities().confines_documents;
  const std::int64_t first = confines ? 20 : 512, second = confines ? 73 : 1024, end = confines ? 130 : 1300;
  const Problem problem = KernelSuite::problem(fmt::format(
      "layout=thd cu_q=0,{},{},{} h_q=3 d=64 mask=causal deterministic=1 max_logit=0 grad=1", first, second, end));
  if (!testing::serves(kernel(), problem)) GTEST_SKIP() << kernel().name() << " refuses the problem";
  KernelDriver clean(kernel(), problem, {.seed = 6});
  clean.run();
  KernelDriver poisoned(kernel(), problem, {.seed = 6});
  Tensors& t = poisoned.tensors();
  for (const TensorView* view : {&t.q, &t.k, &t.v, &t.dout}) {
    if (view->data != nullptr) testing::fill(view->narrow_rows(first, second - first), kNaN);
  }
  poisoned.run();
  for (const auto field : {&Tensors::out, &Tensors::lse, &Tensors::dq, &Tensors::dk, &Tensors::dv}) {
    if ((t.*field).data == nullptr) continue;
    for (const auto& [begin, count] : {std::pair{std::int64_t{0}, first}, std::pair{second, end - second}}) {
      EXPECT_EQ(testing::largest_difference((clean.tensors().*field).narrow_rows(begin, count),
                                            (t.*field).narrow_rows(begin, count)),
                0);
    }
  }
}

TEST_P(KernelSuite, MaxLogitIsOnlyRaised) {
  if (!kernel().capabilities().row_max) GTEST_SKIP() << kernel().name() << " states no row maximum";
  const Problem problem = KernelSuite::problem("dtype=fp32 s_q=33 h_q=2 d=8 mask=causal max_logit=1");
  if (!testing::serves(kernel(), problem)) GTEST_SKIP() << kernel().name() << " refuses the problem";
  KernelDriver driver(kernel(), problem, {.seed = 7});
  driver.run();
  const double natural = testing::read(driver.tensors().max_logit, 0, 0, 1);
  testing::fill(driver.tensors().max_logit, 1000);
  testing::write(driver.tensors().max_logit, 0, 0, 1, 0, -1000);
  driver.forward_call(driver.whole(), true, true, {});
  EXPECT_EQ(testing::read(driver.tensors().max_logit, 0, 0, 0), 1000);
  EXPECT_EQ(testing::read(driver.tensors().max_logit, 0, 0, 1), natural);
}

TEST_P(KernelSuite, ANaNReachesMaxLogit) {
  if (!kernel().capabilities().row_max) GTEST_SKIP() << kernel().name() << " states no row maximum";
  const Problem problem = KernelSuite::problem("dtype=bf16 s_q=150 h_q=2 d=40 mask=causal max_logit=1");
  if (!testing::serves(kernel(), problem)) GTEST_SKIP() << kernel().name() << " refuses the problem";
  for (const auto field : {&Tensors::q, &Tensors::k}) {
    for (const std::int64_t row : {0, 3, 70, 149}) {
      SCOPED_TRACE(row);
      KernelDriver driver(kernel(), problem, {.seed = 7});
      const Tensors& t = driver.tensors();
      const double before = testing::read(t.*field, 0, row, 0, 5);
      testing::write(t.*field, 0, row, 0, 5, kNaN);
      driver.run();
      EXPECT_TRUE(std::isnan(testing::read(t.max_logit, 0, 0, 0))) << "a NaN was hidden";
      EXPECT_TRUE(std::isfinite(testing::read(t.max_logit, 0, 0, 1))) << "another head's NaN";
      testing::fill(t.max_logit, 1000);
      driver.forward_call(driver.whole(), true, true, {});
      EXPECT_TRUE(std::isnan(testing::read(t.max_logit, 0, 0, 0))) << "a NaN was hidden by what was there";
      EXPECT_EQ(testing::read(t.max_logit, 0, 0, 1), 1000);
      testing::write(t.*field, 0, row, 0, 5, before);
      driver.forward_call(driver.whole(), true, true, {});
      EXPECT_TRUE(std::isnan(testing::read(t.max_logit, 0, 0, 0))) << "a NaN was hidden by what came later";
    }
  }
}

TEST_P(KernelSuite, BackwardAddsToWhatIsThere) {
  const Problem problem = KernelSuite::problem("dtype=fp32 b=2 s_q=40 s_k=66 h_q=4 h_kv=2 d=24 mask=causal grad=1");
  if (!testing::serves(kernel(), problem)) GTEST_SKIP() << kernel().name() << " refuses the problem";
  if (!problem.grad) GTEST_SKIP() << kernel().name() << " has no backward for it";
  KernelDriver once(kernel(), problem, {.seed = 8});
  once.run();
  KernelDriver twice(kernel(), problem, {.seed = 8});
  twice.run();
  twice.backward_call(twice.whole(), false, false);
  for (const auto field : {&Tensors::dq, &Tensors::dk, &Tensors::dv}) {
    const TensorView& single = once.tensors().*field;
    testing::for_each_element(single, [&](auto b, auto row, auto head, auto dim) {
      testing::write(single, b, row, head, dim, 2 * testing::read(single, b, row, head, dim));
    });
    EXPECT_LE(testing::largest_difference(single, twice.tensors().*field), reordering(problem));
  }
}

TEST_P(KernelSuite, BitsDoNotDependOnThreads) {
  if (!kernel().capabilities().deterministic) GTEST_SKIP() << kernel().name() << " is not deterministic";
  for (const char* text : {"dtype=bf16 b=2 s_q=150 h_q=6 h_kv=2 d=64 mask=causal max_logit=1 deterministic=1 grad=1",
                           "dtype=fp32 s_q=300 s_k=700 h_q=1 d=32 mask=none deterministic=1 grad=1"}) {
    const Problem problem = KernelSuite::problem(text);
    if (!testing::serves(kernel(), problem)) continue;
    KernelDriver one(kernel(), problem, {.seed = 9}, 1);
    one.run();
    for (const int threads : {1, 2, 3}) {
      SCOPED_TRACE(fmt::format("{} with {} threads", text, threads));
      KernelDriver other(kernel(), problem, {.seed = 9}, threads);
      other.run();
      testing::expect_close(one, other, 0);
    }
  }
}

/// Random slices over s_q × s_k: the keys fall into segments, and within a segment query rows into ranges with bands of
/// their own, so a row may have several slices and they never share a key.
std::vector<Slice> random_slices(std::mt19937_64& random, std::int64_t batches, std::int64_t s_q, std::int64_t s_k) {
  const auto below = [&](std::int64_t n) {
    return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(n));
  };
  const auto edge = [&] { return below(4) == 0 ? kInfinity : below(60) - 15; };
  std::vector<Slice> slices;
  for (std::int64_t b = 0; b < batches; ++b) {
    for (std::int64_t key = below(3); key < s_k;) {
      const std::int64_t k_len = std::min(s_k - key, 1 + below(s_k));
      for (std::int64_t row = below(s_q + 1); row < s_q;) {
        const std::int64_t q_len = std::min(s_q - row, 1 + below(s_q));
        slices.push_back({b, row, q_len, key, k_len, below(100) - 50, below(100) - 50, edge(), edge()});
        row += q_len + below(3);
      }
      key += k_len + below(3);
    }
  }
  std::shuffle(slices.begin(), slices.end(), random);
  return slices;
}

TEST_P(KernelSuite, RandomSliceLists) {
  if (!kernel().capabilities().slices) GTEST_SKIP() << kernel().name() << " takes no slice lists";
  constexpr int kLists = 300;
  int lists_with_pairs = 0;
  for (std::uint64_t seed = 0; seed < kLists; ++seed) {
    std::mt19937_64 random(seed);
    const auto pick = [&](auto... values) {
      const int list[] = {values...};
      return list[random() % sizeof...(values)];
    };
    const int h_kv = pick(1, 2, 3);
    Problem problem;
    problem.dtype = static_cast<DType>(pick(0, 1, 2));
    problem.layout = static_cast<Layout>(pick(0, 1, 2, 3));
    problem.b = problem.layout == Layout::thd ? 1 : pick(1, 2);
    problem.s_q = pick(1, 2, 17, 64, 65, 90);
    problem.s_k = pick(1, 3, 16, 63, 80, 129);
    problem.h_kv = h_kv;
    problem.h_q = h_kv * pick(1, 2, 3);
    problem.d = pick(1, 8, 20, 64);
    problem.d_v = pick(1, 8, 33, 64);
    problem.grad = true;
    problem.max_logit = true;
    if (problem.layout == Layout::thd) {
      problem.cu_q = {0, problem.s_q};
      problem.cu_k = {0, problem.s_k};
    }
    const std::vector<Slice> slices = random_slices(random, problem.batches(), problem.s_q, problem.s_k);
    problem.slices = slices;
    normalize(problem);
    problem = adapt(problem);
    SCOPED_TRACE(fmt::format("seed {}: {}", seed, to_text(problem)));
    if (!testing::serves(kernel(), problem)) continue;
    KernelDriver driver(kernel(), problem, {.seed = seed});
    const bool several = kernel().capabilities().accumulates && seed % 2 == 1;
    // The raw list, not mask_slices(): bands that leave rows or whole slices without a key are a kernel's business too.
    driver.run(several ? testing::cut_keys(problem, slices, pick(2, 3, 5))
                       : std::vector<Call>{{slices, 0, problem.s_k}});
    testing::expect_right(driver);
    if (HasFailure()) return;
    lists_with_pairs += mask_slices(problem).empty() ? 0 : 1;
  }
  EXPECT_GT(lists_with_pairs, kLists / 2);
}

}  // namespace
}  // namespace rotunda
