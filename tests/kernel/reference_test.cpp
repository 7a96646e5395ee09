// The reference kernel on hand-sized data with known answers.
#include "kernel/reference/reference_kernel.hpp"

#include <gtest/gtest.h>

#include <array>
#include <cmath>

#include "kernel_driver.hpp"

namespace rotunda {
namespace {

using testing::kNaN;

const float kLn2F = std::log(2.0F);
const float kLn3F = std::log(3.0F);
const float kLn4F = std::log(4.0F);

/// One head of fp32 rows with dim 1, on the reference kernel.
struct Tiny {
  std::vector<float> q, k, v, dout;
  std::vector<float> acc, lse, out, delta, dq, dk, dv;
  float max_logit = -INFINITY;

  Tiny(std::vector<float> q_rows, std::vector<float> k_rows, std::vector<float> v_rows)
      : q(std::move(q_rows)), k(std::move(k_rows)), v(std::move(v_rows)) {
    const auto nan = static_cast<float>(kNaN);
    for (auto* rows : {&acc, &lse, &out, &delta, &dq}) rows->assign(q.size(), nan);
    for (auto* rows : {&dk, &dv}) rows->assign(k.size(), nan);
  }

  static TensorView view(std::vector<float>& rows) {
    return make_view(rows.data(), DType::fp32, Layout::bshd, 1, static_cast<std::int64_t>(rows.size()), 1, 1);
  }
  [[nodiscard]] Slice all() const {
    return {0, 0, static_cast<std::int64_t>(q.size()), 0, static_cast<std::int64_t>(k.size()), 0, 0};
  }

  void forward(const std::vector<Slice>& slices, bool init, bool last) {
    ForwardArgs args;
    args.slices = slices;
    args.q = view(q);
    args.k = view(k);
    args.v = view(v);
    args.acc = view(acc);
    args.lse = view(lse);
    args.out = view(out);
    args.max_logit = &max_logit;
    args.init = init;
    args.last = last;
    with_context([&](const KernelContext& context) { reference_kernel().forward(args, context); });
  }

  void backward(const std::vector<Slice>& slices, bool init) {
    BackwardArgs args;
    args.slices = slices;
    args.q = view(q);
    args.k = view(k);
    args.v = view(v);
    args.dout = view(dout);
    args.lse = view(lse);
    args.delta = view(delta);
    args.dq = view(dq);
    args.dk = view(dk);
    args.dv = view(dv);
    args.init_dq = args.init_dkv = init;
    with_context([&](const KernelContext& context) { reference_kernel().backward(args, context); });
  }

  template <class Body>
  static void with_context(Body&& body) {
    std::array<double, 64> scratch{};
    ThreadPool pool(1);
    body(KernelContext{pool, std::as_writable_bytes(std::span(scratch))});
  }
};

void expect_rows(const std::vector<float>& got, const std::vector<float>& want) {
  ASSERT_EQ(got.size(), want.size());
  for (std::size_t i = 0; i < want.size(); ++i) {
    if (std::isinf(want[i])) {
      EXPECT_EQ(got[i], want[i]) << "row " << i;
    } else {
      EXPECT_NEAR(got[i], want[i], 2e-6) << "row " << i;
    }
  }
}

TEST(Reference, TwoQueriesTwoKeysByHand) {
  // Logits: row 0: 0, ln 3: weights 1/4, 3/4. Row 1: 0, 0: weights 1/2, 1/2.
  Tiny tiny({1, 0}, {0, kLn3F}, {4, 8});
  tiny.forward({tiny.all()}, true, true);
  expect_rows(tiny.out, {7, 6});
  expect_rows(tiny.lse, {kLn4F, kLn2F});
  EXPECT_NEAR(tiny.max_logit, kLn3F, 1e-6);

  // dout 1, 10: delta = dout·out = 7, 60; dS = P∘(dP - delta): row 0: -3/4, 3/4; row 1: -10, 10.
  tiny.dout = {1, 10};
  tiny.delta = {7, 60};
  tiny.backward({tiny.all()}, true);
  expect_rows(tiny.dq, {0.75F * kLn3F, 10 * kLn3F});
  expect_rows(tiny.dk, {-0.75F, 0.75F});  // row 1 has q = 0
  expect_rows(tiny.dv, {0.25F + 5, 0.75F + 5});
  tiny.backward({tiny.all()}, false);
  expect_rows(tiny.dv, {2 * 5.25F, 2 * 5.75F});
  expect_rows(tiny.dq, {1.5F * kLn3F, 20 * kLn3F});
}

TEST(Reference, ResumesARunningState) {
  Tiny tiny({0}, {0, 0}, {4, 10});
  tiny.acc = {1};
  tiny.lse = {0};  // one key of weight 1 so far
  tiny.forward({tiny.all()}, false, false);
  expect_rows(tiny.acc, {5});  // (1 + 4 + 10) / 3
  expect_rows(tiny.lse, {kLn3F});
  EXPECT_TRUE(std::isnan(tiny.out[0])) << "out is written only with last";
  tiny.forward({}, false, true);
  expect_rows(tiny.out, {5});
  expect_rows(tiny.lse, {kLn3F});
}

TEST(Reference, StartsFromNothingWhateverTheBuffersHold) {
  Tiny tiny({0, 0, 0}, {0, 0}, {4, 10});
  tiny.forward({{0, 1, 1, 0, 2, 0, 0}}, true, false);
  expect_rows(tiny.acc, {0, 7, 0});
  expect_rows(tiny.lse, {-INFINITY, kLn2F, -INFINITY});
  tiny.forward({{0, 2, 1, 1, 1, 0, 0}}, false, true);
  expect_rows(tiny.out, {0, 7, 10});
  expect_rows(tiny.lse, {-INFINITY, kLn2F, 0});
}

TEST(Reference, BandsCountFromGlobalPositions) {
  // q = 0, values 1 to 4: out is the mean of what a row sees.
  const auto out_of = [](Slice slice) {
    Tiny tiny({0, 0, 0}, {0, 0, 0, 0}, {1, 2, 3, 4});
    tiny.forward({slice}, true, true);
    return tiny.out;
  };
  expect_rows(out_of({0, 0, 3, 0, 4, 0, 0, kInfinity, 0}), {1, 1.5F, 2});      // causal
  expect_rows(out_of({0, 0, 3, 0, 4, 1, 0, kInfinity, 0}), {1.5F, 2, 2.5F});   // causal, bottom right
  expect_rows(out_of({0, 0, 3, 0, 4, 0, 0, 1, 1}), {1.5F, 2, 3});              // window 1, 1
  expect_rows(out_of({0, 0, 3, 0, 4, 0, 0, -1, kInfinity}), {3, 3.5F, 4});     // left = -1: only j > i
  expect_rows(out_of({0, 0, 3, 0, 4, 100, 103, kInfinity, 3}), {1, 1.5F, 2});  // far from 0
  expect_rows(out_of({0, 0, 3, 0, 4, 0, 9, kInfinity, 0}), {0, 0, 0});         // all keys in the future
  expect_rows(out_of({0, 1, 2, 2, 2, 0, 0, kInfinity, 0}), {0, 3, 3.5F});      // a part of both
}

TEST(Reference, OneRowMayHaveSeveralSlices) {
  Tiny tiny({0}, {0, 0, 0}, {1, 100, 5});
  tiny.forward({{0, 0, 1, 2, 1, 0, 0}, {0, 0, 1, 0, 1, 0, 0}}, true, true);
  expect_rows(tiny.out, {3});
  expect_rows(tiny.lse, {kLn2F});
}

TEST(Reference, IsNeverChosenByItself) {
  EXPECT_FALSE(reference_kernel().capabilities().automatic);
}

TEST(Reference, SaysThatTheWorkspaceIsTooSmall) {
  Tiny tiny({0}, {0}, {1});
  ForwardArgs args;
  args.q = args.k = args.v = Tiny::view(tiny.q);
  ThreadPool pool(1);
  try {
    reference_kernel().forward(args, KernelContext{pool, {}});
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::internal);
  }
}

}  // namespace
}  // namespace rotunda
