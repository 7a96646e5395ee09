// The device's reference kernel against the host's on the same calls: state, its low part, rows of no slice, bits.
#include "kernel/reference/cuda/cuda_reference_kernel.hpp"

#include <fmt/format.h>

#include <random>

#include "kernel/device_call.hpp"
#include "kernel/reference/reference_kernel.hpp"
#include "mirror.hpp"

namespace rotunda {
namespace {

using testing::Form;

/// The tensors of a call on the host; outputs hold NaN.
struct Case {
  testing::ProblemTensors owner;
  Problem problem;
  TensorView acc, lse_low, delta;
  std::vector<float> max_logit;
  HeadMap heads;

  Case(const Problem& p, std::uint64_t seed) : owner(p, {.seed = seed, .gap = 3}), problem(p) {
    acc = owner.allocate(DType::fp32, p.layout, p.batches(), p.s_q, p.h_q, p.d_v);
    lse_low = owner.allocate(DType::fp32, p.layout, p.batches(), p.s_q, p.h_q, 1);
    delta = owner.allocate(DType::fp32, p.layout, p.batches(), p.s_q, p.h_q, 1);
    testing::fill_nearly_normal(delta, seed, testing::Stream::q);
    Tensors& t = owner.views();
    t.dq = owner.allocate(DType::fp32, p.layout, p.batches(), p.s_q, p.h_q, p.d);
    t.dk = owner.allocate(DType::fp32, p.layout, p.batches(), p.s_k, p.h_kv, p.d);
    t.dv = owner.allocate(DType::fp32, p.layout, p.batches(), p.s_k, p.h_kv, p.d_v);
    max_logit.assign(static_cast<std::size_t>(p.h_q), -INFINITY);
    heads.group = p.h_q / p.h_kv;
  }

  void forward(const Kernel& kernel, const std::vector<Slice>& slices, bool init, bool last) {
    const Tensors& t = owner.views();
    run(kernel, ForwardArgs{.slices = slices,
                            .q = t.q,
                            .k = t.k,
                            .v = t.v,
                            .acc = acc,
                            .lse = t.lse,
                            .out = t.out,
                            .max_logit = max_logit.data(),
                            .heads = heads,
                            .scale = problem.scale,
                            .init = init,
                            .last = last,
                            .lse_low = lse_low});
  }
  void backward(const Kernel& kernel, const std::vector<Slice>& slices, bool init_dq, bool init_dkv) {
    const Tensors& t = owner.views();
    run(kernel, BackwardArgs{.slices = slices,
                             .q = t.q,
                             .k = t.k,
                             .v = t.v,
                             .dout = t.dout,
                             .lse = t.lse,
                             .delta = delta,
                             .dq = t.dq,
                             .dk = t.dk,
                             .dv = t.dv,
                             .heads = heads,
                             .scale = problem.scale,
                             .init_dq = init_dq,
                             .init_dkv = init_dkv});
  }

 private:
  template <class Args>
  void run(const Kernel& kernel, const Args& args) {
    ThreadPool threads(1);
    if (kernel.capabilities().device == Device::Kind::cuda) {
      testing::DeviceCall(cuda_device(0)).run(kernel, problem, args, threads);
      return;
    }
    constexpr bool kBackward = std::is_same_v<Args, BackwardArgs>;
    const HostBuffer workspace(kernel.workspace_bytes(problem, whole_call(problem, {}, kBackward)));
    const KernelContext context{threads, {workspace.data(), static_cast<std::size_t>(workspace.bytes())}};
    if constexpr (kBackward) {
      kernel.backward(args, context);
    } else {
      kernel.forward(args, context);
    }
  }
};

/// Three lists over disjoint keys that leave query rows 60 to 66 to none, and their bands at odd places.
std::vector<std::vector<Slice>> three_lists() {
  return {{{0, 0, 33, 0, 29, 0, 0, kInfinity, 0}, {1, 5, 55, 3, 20, -4, 2, 9, 11}},
          {{0, 30, 30, 29, 31, 0, 0, kInfinity, kInfinity},
           {0, 1, 3, 29, 1, 0, 0, kInfinity, kInfinity},
           {1, 0, 60, 30, 30, 0, 0, 3, -3}},
          {{0, 67, 3, 60, 30, 7, 0, kInfinity, 30}, {1, 67, 3, 60, 17, 0, 50, kInfinity, kInfinity}}};
}

class CudaReference : public testing::GpuTest {
 protected:
  static Problem problem(const char* dtype, int d, int d_v) {
    return parse_problem(
        fmt::format("dtype={} b=2 s_q=70 s_k=90 h_q=6 h_kv=2 d={} d_v={} mask=none grad=1", dtype, d, d_v));
  }
  const Kernel& ours = cuda_reference_kernel();
};

void expect_same_state(const Case& got, const Case& want) {
  testing::expect_equal(got.owner.views().lse, want.owner.views().lse, 1e-6, 1e-6);
  testing::expect_equal(got.acc, want.acc, 1e-6, 1e-6);
  testing::for_each_element(want.lse_low, [&](auto b, auto row, auto head, auto) {
    const auto sum = [&](const Case& c) {
      return testing::read(c.owner.views().lse, b, row, head) + testing::read(c.lse_low, b, row, head);
    };
    if (sum(want) == -HUGE_VAL) return;
    ASSERT_NEAR(sum(got), sum(want), 1e-10) << b << ", " << row << ", " << head;
  });
  for (std::size_t i = 0; i < want.max_logit.size(); ++i) EXPECT_NEAR(got.max_logit[i], want.max_logit[i], 1e-6);
}

TEST_F(CudaReference, StateIsTheHostsAfterEveryCall) {
  for (const char* dtype : {"bf16", "fp16", "fp32"}) {
    for (const auto& [d, d_v] : {std::pair{40, 24}, std::pair{129, 512}, std::pair{3, 130}, std::pair{512, 257}}) {
      SCOPED_TRACE(fmt::format("{} d={} d_v={}", dtype, d, d_v));
      Case got(problem(dtype, d, d_v), 1), want(problem(dtype, d, d_v), 1);
      const auto lists = three_lists();
      for (std::size_t i = 0; i < lists.size(); ++i) {
        got.forward(ours, lists[i], i == 0, false);
        want.forward(reference_kernel(), lists[i], i == 0, false);
        expect_same_state(got, want);
      }
      got.forward(ours, {}, false, true);
      want.forward(reference_kernel(), {}, false, true);
      testing::expect_equal(got.owner.views().out, want.owner.views().out, testing::rounding(got.problem.dtype), 1e-6);
      for (std::size_t i = 0; i < lists.size(); ++i) {
        got.backward(ours, lists[i], i == 0, i == 0);
        want.backward(reference_kernel(), lists[i], i == 0, i == 0);
        for (const auto field : {&Tensors::dq, &Tensors::dk, &Tensors::dv}) {
          testing::expect_equal(got.owner.views().*field, want.owner.views().*field, 2e-6, 2e-5);
        }
      }
    }
  }
}

TEST_F(CudaReference, RowsOfNoSliceStayWhenNothingStartsOrEnds) {
  Case c(problem("bf16", 64, 64), 2);
  testing::fill(c.acc, 7);
  testing::fill(c.owner.views().lse, 3);  // beside a low part of NaN, which writing lse again would show
  c.forward(ours, three_lists()[0], false, false);
  for (std::int64_t row = 60; row < 70; ++row) {
    EXPECT_EQ(testing::read(c.acc, 0, row, 0, 5), 7) << row;
    EXPECT_EQ(testing::read(c.owner.views().lse, 0, row, 0), 3) << row;
  }
}

TEST_F(CudaReference, MinusInfinityLogitsWeighNothing) {
  Case c(problem("fp32", 8, 8), 3);
  testing::fill(c.owner.views().q, -HUGE_VAL);
  testing::fill(c.owner.views().k, 1);
  c.forward(ours, three_lists()[0], true, true);
  testing::for_each_element(c.owner.views().out, [&](auto b, auto row, auto head, auto i) {
    ASSERT_EQ(testing::read(c.owner.views().out, b, row, head, i), 0);
    ASSERT_EQ(testing::read(c.owner.views().lse, b, row, head), -HUGE_VAL);
  });
  c.backward(ours, three_lists()[0], true, true);
  testing::for_each_element(c.owner.views().dv, [&](auto b, auto row, auto head, auto i) {
    ASSERT_EQ(testing::read(c.owner.views().dv, b, row, head, i), 0);
  });
}

TEST_F(CudaReference, InfinitiesReachOnlyWhatSeesThem) {
  for (const double value : {HUGE_VAL, -HUGE_VAL, testing::kNaN}) {
    for (const auto field : {&Tensors::q, &Tensors::k, &Tensors::v, &Tensors::dout}) {
      Case got(problem("bf16", 40, 24), 4), want(problem("bf16", 40, 24), 4);
      for (Case* c : {&got, &want}) {
        for (const std::int64_t row : {1, 31, 60}) testing::write(c->owner.views().*field, 0, row, 1, 7, value);
      }
      got.forward(ours, three_lists()[0], true, true);
      want.forward(reference_kernel(), three_lists()[0], true, true);
      got.backward(ours, three_lists()[0], true, true);
      want.backward(reference_kernel(), three_lists()[0], true, true);
      for (const auto out : {&Tensors::out, &Tensors::lse, &Tensors::dq, &Tensors::dk, &Tensors::dv}) {
        const TensorView &x = got.owner.views().*out, &y = want.owner.views().*out;
        testing::for_each_element(y, [&](auto b, auto row, auto head, auto i) {
          ASSERT_EQ(std::isfinite(testing::read(x, b, row, head, i)), std::isfinite(testing::read(y, b, row, head, i)))
              << b << ", " << row << ", " << head << ", " << i;
        });
      }
    }
  }
}

TEST_F(CudaReference, RefusesWideHeads) {
  Problem wide = problem("bf16", 512, 512);
  EXPECT_FALSE(ours.refuse(wide, device).has_value());
  wide.d_v = 513;
  EXPECT_TRUE(ours.refuse(wide, device).has_value());
}

}  // namespace
}  // namespace rotunda
