// The oracle against numbers worked out by hand and against finite differences; the bar against planted faults.
#include "rotunda/oracle.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>

#include "kernel/oracle/runs.hpp"
#include "kernel/reference/reference_kernel.hpp"
#include "kernel_driver.hpp"
#include "support/error_test.hpp"
#include "support/random_problem.hpp"

namespace rotunda {
namespace {

using testing::KernelDriver;
using testing::kNaN;
using testing::ProblemTensors;

const double kLn2 = std::log(2.0);
const double kLn3 = std::log(3.0);

/// fp32 logits hold ln 3 to 1e-7.
constexpr double kNear = 1e-6;

void expect_values(const std::vector<double>& got, const std::vector<double>& want) {
  ASSERT_EQ(got.size(), want.size());
  for (std::size_t i = 0; i < want.size(); ++i) {
    if (std::isinf(want[i])) {
      EXPECT_EQ(got[i], want[i]) << i;
    } else {
      EXPECT_NEAR(got[i], want[i], kNear) << i;
    }
  }
}

void set(const TensorView& view, const std::vector<double>& values) {
  std::size_t i = 0;
  testing::for_each_element(
      view, [&](auto b, auto row, auto head, auto dim) { testing::write(view, b, row, head, dim, values.at(i++)); });
}

TEST(Oracle, RefusesWrongTensors) {
  const Problem problem = parse_problem("dtype=fp32 s_q=2 s_k=3 h_q=2 h_kv=1 d=4 sink=learnable grad=1");
  ProblemTensors tensors(problem);
  const auto refused = [&](TensorView Tensors::*member, const auto& spoil, const char* message) {
    Tensors wrong = tensors.views();
    spoil(wrong.*member);
    EXPECT_ERROR((void)oracle(problem, wrong, 1), ErrorKind::bad_input, message);
  };
  const auto empty = [](TensorView& view) { view.data = nullptr; };
  refused(&Tensors::q, empty, "tensor q is fp32[1, 2, 2, 4] without memory");
  refused(&Tensors::sink, empty, "tensor sink is fp32[1, 1, 2, 1] without memory");
  refused(
      &Tensors::dout, [](TensorView& view) { view = {}; }, "the problem wants fp32[1, 2, 2, 4]");
  refused(
      &Tensors::v, [](TensorView& view) { ++view.shape[1]; }, "tensor v is fp32[1, 4, 1, 4]");
  refused(
      &Tensors::k, [](TensorView& view) { view.dtype = DType::bf16; }, "tensor k is bf16[1, 3, 1, 4]");
}

TEST(Oracle, TwoKeysByHand) {
  const Problem problem = parse_problem("dtype=fp32 s_q=1 s_k=2 h_q=1 d=1 mask=none scale=1 max_logit=1 grad=1");
  ProblemTensors tensors(problem);
  set(tensors.views().q, {1});
  set(tensors.views().k, {0, kLn3});
  set(tensors.views().v, {4, 8});
  set(tensors.views().dout, {1});
  const OracleResult result = oracle(problem, tensors.views(), 1);
  for (const Answers* answers : {&result.exact, &result.naive}) {
    expect_values(answers->out, {7});  // weights 1/4, 3/4
    expect_values(answers->lse, {2 * kLn2});
    expect_values(answers->max_logit, {kLn3});
    expect_values(answers->dq, {0.75 * kLn3});  // dS = -3/4, 3/4
    expect_values(answers->dk, {-0.75, 0.75});
    expect_values(answers->dv, {0.25, 0.75});
  }
}

/// A row that sees nothing but the sink, rows with one key and two, and padding.
Problem sink_problem() {
  return parse_problem(
      "dtype=fp32 b=2 s_q=2 s_k=2 h_q=1 d=1 mask=causal_bottom_right lens_q=2,1 lens_k=1,2 scale=1 "
      "sink=learnable max_logit=1 grad=1");
}

TEST(Oracle, SinkByHand) {
  const Problem problem = sink_problem();
  ProblemTensors tensors(problem, {.sink = {static_cast<float>(kLn3)}});
  testing::fill(tensors.views().q, 0);
  testing::fill(tensors.views().k, 0);
  set(tensors.views().v, {8, kNaN, 4, 12});
  set(tensors.views().dout, {5, 1, 2, kNaN});
  const OracleResult result = oracle(problem, tensors.views(), 1);
  // Entry 0: row 0 sees nothing but the sink, row 1 one key. Entry 1: row 0 sees two keys, row 1 is padding.
  expect_values(result.exact.out, {0, 8.0 / 4, 16.0 / 5, 0});
  expect_values(result.exact.lse, {kLn3, std::log(4.0), std::log(5.0), -INFINITY});
  expect_values(result.exact.max_logit, {0});
  // -Σ exp(sink - lse)·delta, delta = 0, 2, 32/5
  expect_values(result.exact.dsink, {-(3.0 / 4 * 2 + 3.0 / 5 * 32.0 / 5)});
  expect_values(result.exact.dv, {1.0 / 4, 0, 2.0 / 5, 2.0 / 5});
}

TEST(Oracle, ASinkOfInfinityTakesAllTheWeight) {
  const Problem problem = sink_problem();
  ProblemTensors tensors(problem, {.seed = 6, .sink = {INFINITY}});
  const OracleResult result = oracle(problem, tensors.views(), 1);
  for (const Answers* answers : {&result.exact, &result.naive}) {
    expect_values(answers->out, {0, 0, 0, 0});
    expect_values(answers->lse, {INFINITY, INFINITY, INFINITY, -INFINITY});
    for (const auto field : {&Answers::dq, &Answers::dk, &Answers::dv}) expect_values(answers->*field, {0, 0, 0, 0});
    expect_values(answers->dsink, {0});
  }
  for (const double floor : {result.floors.out, result.floors.dq, result.floors.dk, result.floors.dv}) {
    EXPECT_EQ(floor, 0);
  }
  EXPECT_EQ(result.floors.dsink, 0);
}

TEST(Oracle, ASinkOfMinusInfinityIsNone) {
  const Problem problem = sink_problem();
  ProblemTensors tensors(problem, {.seed = 6, .sink = {-INFINITY}});
  expect_values(oracle(problem, tensors.views(), 1).exact.dsink, {0});
}

/// Rows that see no key keep out = 0 and dq = 0; their lse is the sink's.
TEST(Oracle, ANaNSinkMarksWhatItHasAShareIn) {
  const Problem problem = sink_problem();
  ProblemTensors tensors(problem, {.seed = 6, .sink = {static_cast<float>(kNaN)}});
  const Answers exact = oracle(problem, tensors.views(), 1).exact;
  const auto is_nan = [](const std::vector<double>& values) {
    std::vector<bool> result;
    for (const double value : values) result.push_back(std::isnan(value));
    return result;
  };
  EXPECT_EQ(is_nan(exact.out), (std::vector<bool>{false, true, true, false}));
  EXPECT_EQ(is_nan(exact.dq), (std::vector<bool>{false, true, true, false}));
  EXPECT_EQ(is_nan(exact.lse), (std::vector<bool>{true, true, true, false}));
  EXPECT_EQ(is_nan(exact.dsink), (std::vector<bool>{true}));
  EXPECT_EQ(exact.out[0], 0);
  EXPECT_EQ(exact.dq[0], 0);
}

TEST(Oracle, ZeroSinkIsOneMoreLogit) {
  const Problem problem = parse_problem("dtype=bf16 s_q=3 s_k=1 h_q=2 h_kv=1 d=1 mask=causal_bottom_right sink=zero");
  ProblemTensors tensors(problem);
  testing::fill(tensors.views().q, 0);
  testing::fill(tensors.views().v, 6);
  const OracleResult result = oracle(problem, tensors.views(), 1);
  expect_values(result.exact.out, {0, 0, 0, 0, 3, 3});
  expect_values(result.exact.lse, {0, 0, 0, 0, kLn2, kLn2});
  EXPECT_TRUE(result.exact.dq.empty());
}

TEST(Oracle, QueryHeadsShareKvHeadsInOrder) {
  const Problem problem = parse_problem("dtype=fp32 layout=bhsd s_q=1 h_q=4 h_kv=2 d=1 d_v=2 mask=none grad=1");
  ProblemTensors tensors(problem);
  set(tensors.views().v, {1, 2, 3, 4});
  set(tensors.views().dout, {1, 2, 10, 20, 100, 200, 1000, 2000});
  const OracleResult result = oracle(problem, tensors.views(), 1);
  expect_values(result.exact.out, {1, 2, 1, 2, 3, 4, 3, 4});
  expect_values(result.exact.dv, {11, 22, 1100, 2200});
}

TEST(Oracle, NaiveRoundsEveryResult) {
  const Problem problem = parse_problem("dtype=bf16 s_q=40 h_q=2 d=8 mask=causal grad=1");
  const ProblemTensors tensors(problem, {.seed = 1});
  const OracleResult result = oracle(problem, tensors.views(), 1);
  for (const auto field : {&Answers::out, &Answers::dq, &Answers::dk, &Answers::dv}) {
    double error = 0;
    for (std::size_t i = 0; i < (result.naive.*field).size(); ++i) {
      const double value = (result.naive.*field)[i];
      EXPECT_EQ(value, static_cast<double>(static_cast<float>(bf16_t(static_cast<float>(value)))));
      error = std::max(error, std::abs(value - (result.exact.*field)[i]));
    }
    EXPECT_GT(error, 1e-3);
    EXPECT_LT(error, 1e-1);
  }
}

/// Σ out∘dout, whose gradients are dq, dk, dv and dsink.
double loss(const Problem& problem, const Tensors& tensors) {
  Problem forward_only = problem;
  forward_only.grad = false;
  const std::vector<double> out = oracle(forward_only, tensors, 1).exact.out;
  const std::vector<double> dout = testing::to_vector(tensors.dout);
  double sum = 0;
  for (std::size_t i = 0; i < out.size(); ++i) sum += out[i] * dout[i];
  return sum;
}

void expect_gradient(const Problem& problem, const Tensors& tensors, const TensorView& input,
                     const std::vector<double>& gradient) {
  std::size_t i = 0;
  double largest = 0;
  testing::for_each_element(input, [&](auto b, auto row, auto head, auto dim) {
    const double value = testing::read(input, b, row, head, dim);
    const auto shifted = [&](double step) {
      testing::write(input, b, row, head, dim, value + step);
      return std::pair{testing::read(input, b, row, head, dim), loss(problem, tensors)};
    };
    const auto [high, loss_high] = shifted(0x1p-9);
    const auto [low, loss_low] = shifted(-0x1p-9);
    testing::write(input, b, row, head, dim, value);
    EXPECT_NEAR(gradient.at(i), (loss_high - loss_low) / (high - low), 3e-5) << "element " << i;
    largest = std::max(largest, std::abs(gradient[i++]));
  });
  EXPECT_GT(largest, 0.05);
}

TEST(Oracle, GradientsAreFiniteDifferences) {
  for (const char* text : {"dtype=fp32 layout=sbhd b=2 s_q=5 s_k=6 h_q=2 h_kv=1 d=3 d_v=2 mask=causal_bottom_right "
                           "window=3,0 prefix=1 sink=learnable grad=1",
                           "dtype=fp32 layout=thd cu_q=0,3,7 h_q=2 d=2 mask=none window=1,2 scale=1.5 grad=1"}) {
    SCOPED_TRACE(text);
    const Problem problem = parse_problem(text);
    const ProblemTensors owner(problem, {.seed = 2});
    const Tensors& tensors = owner.views();
    const Answers exact = oracle(problem, tensors, 1).exact;
    expect_gradient(problem, tensors, tensors.q, exact.dq);
    expect_gradient(problem, tensors, tensors.k, exact.dk);
    expect_gradient(problem, tensors, tensors.v, exact.dv);
    if (problem.sink == Sink::learnable) expect_gradient(problem, tensors, tensors.sink, exact.dsink);
  }
}

/// Rows and keys in blocks, vectors and remainders: every pair counted once, in every arithmetic.
TEST(Oracle, WeightsSumToOneAtEveryLength) {
  for (const int s : {0, 1, 31, 32, 33, 64, 100}) {
    for (const char* dtype : {"fp32", "fp16", "bf16"}) {
      const Problem problem = parse_problem(fmt::format(
          "dtype={} s_q={} s_k={} h_q=2 h_kv=1 d=7 d_v=13 mask=causal window=40,0 grad=1", dtype, s, s + 3));
      ProblemTensors tensors(problem, {.seed = 3});
      testing::fill(tensors.views().v, 1);
      testing::fill(tensors.views().dout, 1);
      const OracleResult result = oracle(problem, tensors.views(), 2);
      double dv = 0;
      for (const double value : result.exact.out) EXPECT_NEAR(value, 1, 1e-12);
      for (const double value : result.exact.dq) EXPECT_NEAR(value, 0, 1e-12);
      for (const double value : result.exact.dv) dv += value;
      EXPECT_NEAR(dv, s * 2 * 13, 1e-9);
      for (const double value : result.naive.out) EXPECT_NEAR(value, 1, 0.02);
    }
  }
}

TEST(Oracle, NaNMarksOnlyWhatSeesIt) {
  const Problem problem = parse_problem("dtype=bf16 s_q=6 h_q=2 d=4 mask=causal window=2,0 max_logit=1 grad=1");
  ProblemTensors tensors(problem, {.seed = 4});
  testing::write(tensors.views().k, 0, 2, 1, 3, kNaN);
  const Answers exact = oracle(problem, tensors.views(), 1).exact;
  for (std::size_t row = 0; row < 6; ++row) {
    for (std::size_t head = 0; head < 2; ++head) {
      const bool hurt = head == 1 && row >= 2 && row <= 4;  // rows that see key 2
      const bool hurt_key = head == 1 && row <= 4;          // keys that such rows see
      EXPECT_EQ(std::isnan(exact.lse[row * 2 + head]), hurt);
      EXPECT_EQ(std::isnan(exact.out[(row * 2 + head) * 4]), hurt);
      EXPECT_EQ(std::isnan(exact.dq[(row * 2 + head) * 4]), hurt);
      EXPECT_EQ(std::isnan(exact.dv[(row * 2 + head) * 4]), hurt_key);
    }
  }
  EXPECT_FALSE(std::isnan(exact.max_logit[0]));
  EXPECT_TRUE(std::isnan(exact.max_logit[1]));
}

TEST(Oracle, IsTheSameForAnyThreadsAndTellsItsProgress) {
  const Problem problem = parse_problem("dtype=bf16 b=2 s_q=100 h_q=4 h_kv=2 d=16 mask=causal grad=1");
  const ProblemTensors tensors(problem, {.seed = 5});
  std::atomic<int> calls = 0;
  std::atomic<double> last = 0;
  const OracleResult one = oracle(problem, tensors.views(), 1, [&](double part) {
    ++calls;
    EXPECT_GT(part, last.exchange(part));
  });
  EXPECT_GT(calls, 10);
  EXPECT_EQ(last, 1);
  const OracleResult three = oracle(problem, tensors.views(), 3);
  for (const auto field : {&Answers::out, &Answers::lse, &Answers::dq, &Answers::dk, &Answers::dv}) {
    EXPECT_EQ(one.exact.*field, three.exact.*field);
    EXPECT_EQ(one.naive.*field, three.naive.*field);
  }
}

TEST(SliceIndex, FindsWhatALookAtAllFinds) {
  using oracle_detail::Range;
  testing::Random random(5);
  std::vector<Slice> slices;
  for (int i = 0; i < 200; ++i) {
    slices.push_back({0, random.between(0, 90), random.between(0, 9), random.between(0, 90), random.between(0, 9)});
  }
  const oracle_detail::SliceIndex index(slices);
  for (int i = 0; i < 500; ++i) {
    const std::int64_t row = random.between(0, 100), key = random.between(0, 100);
    const Range rows{row, row + random.between(0, 20)}, keys{key, key + random.between(0, 100)};
    std::vector<Slice> wanted;
    for (const Slice& slice : slices) {
      const bool in_rows = slice.q_begin < rows.end && rows.begin < slice.q_begin + slice.q_len;
      if (in_rows && slice.k_begin < keys.end && keys.begin < slice.k_begin + slice.k_len) wanted.push_back(slice);
    }
    EXPECT_EQ(index.meeting(rows, keys), wanted);
  }
}

}  // namespace
}  // namespace rotunda
