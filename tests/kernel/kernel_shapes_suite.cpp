// Suite: one call on whole problems of every shape, mask, layout and dtype, against float64.
#include <fmt/format.h>

#include "kernel_driver.hpp"
#include "kernel_suite.hpp"

namespace rotunda {
namespace {

using testing::KernelDriver;
using testing::TensorOptions;

/// Runs a problem in one call and compares. On the CPU nothing may be refused.
void check(const Kernel& kernel, const Problem& problem, const TensorOptions& options = {}) {
  SCOPED_TRACE(to_text(problem));
  if (!testing::serves(kernel, problem)) return;
  const auto bytes = static_cast<std::int64_t>(size_of(problem.dtype));
  if (options.gap * bytes % kernel.capabilities().alignment != 0) return;  // an executor refuses these strides
  KernelDriver driver(kernel, problem, options);
  driver.run();
  testing::expect_right(driver);
}

TEST_P(KernelSuite, ServesOddLengths) {
  std::uint64_t seed = 1;
  for (const int s_q : {0, 1, 63, 65}) {
    for (const int s_k : {0, 1, 63, 65, 130}) {
      for (const char* mask : {"none", "causal", "causal_bottom_right"}) {
        check(kernel(),
              problem(fmt::format("b=2 s_q={} s_k={} h_q=2 h_kv=1 d=40 mask={} max_logit=1 grad=1", s_q, s_k, mask)),
              {.seed = seed++});
      }
    }
  }
}

TEST_P(KernelSuite, ServesNoTokensAtAll) {
  check(kernel(), problem("b=0 s_q=5 h_q=2 d=8 mask=none grad=1"));
  check(kernel(), problem("layout=thd cu_q=0 h_q=2 d=8 mask=causal grad=1"));
  check(kernel(), problem("layout=thd cu_q=0,0,0 cu_k=0,3,7 h_q=2 d=8 mask=causal grad=1"));
}

TEST_P(KernelSuite, ServesEveryMask) {
  const char* const masks[] = {
      "mask=none",
      "mask=causal",
      "mask=causal_bottom_right",
      "mask=causal window=5,0",
      "mask=none window=0,0",
      "mask=none window=7,3",
      "mask=none window=inf,2",
      "mask=none window=31,inf align=bottom_right",
      "mask=causal prefix=9",
      "mask=none window=4,4 prefix=20",
      "mask=causal chunk=16",
      "mask=none chunk=7 align=bottom_right",
      "mask=causal window=10,0 prefix=5 chunk=24",
      "mask=none lens_q=70,0 lens_k=33,90",
      "mask=causal_bottom_right lens_q=65,20 lens_k=1,0",
  };
  std::uint64_t seed = 100;
  for (const char* mask : masks) {
    check(kernel(), problem(fmt::format("dtype=fp16 b=2 s_q=70 s_k=97 h_q=4 h_kv=2 d=24 {} grad=1", mask)),
          {.seed = seed++});
  }
}

TEST_P(KernelSuite, ServesEveryLayoutWithPaddedStrides) {
  for (const char* layout : {"bshd", "sbhd", "bhsd"}) {
    for (const std::int64_t gap : {0, 3, 8}) {
      check(kernel(),
            problem(fmt::format("layout={} b=3 s_q=37 s_k=66 h_q=6 h_kv=3 d=16 d_v=24 mask=causal grad=1", layout)),
            {.seed = 200, .gap = gap});
    }
  }
  for (const std::int64_t gap : {0, 5}) {
    check(kernel(),
          problem(
              "layout=thd cu_q=0,10,10,75,140 used_q=7,0,65,33 h_q=4 h_kv=2 d=16 d_v=8 mask=causal max_logit=1 grad=1"),
          {.seed = 201, .gap = gap});
    check(kernel(),
          problem("layout=thd cu_q=0,4,30 cu_k=0,70,100 used_k=64,30 h_q=2 d=16 mask=causal_bottom_right grad=1"),
          {.seed = 202, .gap = gap});
  }
}

TEST_P(KernelSuite, ServesEveryGrouping) {
  for (const char* heads : {"h_q=1", "h_q=5", "h_q=4 h_kv=2", "h_q=8 h_kv=1", "h_q=9 h_kv=3", "h_q=14 h_kv=2"}) {
    check(kernel(), problem(fmt::format("b=2 s_q=67 {} d=32 mask=causal grad=1", heads)), {.seed = 300});
  }
}

TEST_P(KernelSuite, ServesEveryHeadDimAndDType) {
  for (const char* dtype : {"bf16", "fp16", "fp32"}) {
    for (const char* dims : {"d=1", "d=8", "d=40", "d=64", "d=96", "d=128", "d=192", "d=256", "d=512", "d=192 d_v=128",
                             "d=64 d_v=128", "d=7 d_v=1", "d=1 d_v=33", "d=257 d_v=300"}) {
      check(kernel(), problem(fmt::format("dtype={} s_q=65 s_k=70 h_q=2 h_kv=1 {} mask=causal grad=1", dtype, dims)),
            {.seed = 400});
    }
  }
}

TEST_P(KernelSuite, ServesLongRowsAndLargeLogits) {
  check(kernel(), problem("dtype=bf16 s_q=300 s_k=1100 h_q=2 h_kv=1 d=64 mask=causal_bottom_right grad=1"),
        {.seed = 500});
  check(kernel(), problem("dtype=fp32 s_q=130 h_q=2 d=64 mask=causal max_logit=1 grad=1"), {.seed = 501, .gain_q = 30});
  check(kernel(), problem("dtype=fp32 s_q=130 h_q=2 d=64 mask=none scale=0.01 grad=1"), {.seed = 502});
}

/// Padding rows hold NaN in every test of the suite; infinities must not leak either.
TEST_P(KernelSuite, NeverReadsRowsOfNoSlice) {
  for (const double padding : {testing::kNaN, HUGE_VAL, -HUGE_VAL}) {
    check(kernel(), problem("layout=thd cu_q=0,128,256 used_q=32,65 h_q=4 h_kv=1 d=64 mask=causal max_logit=1 grad=1"),
          {.seed = 600, .padding = padding});
    check(kernel(), problem("layout=bhsd b=3 s_q=40 s_k=80 h_q=2 d=32 mask=none lens_q=3,0,40 lens_k=1,80,0 grad=1"),
          {.seed = 601, .padding = padding});
  }
}

}  // namespace
}  // namespace rotunda
