// The mma kernel on every shape that is compiled: the shared suite as devices with less shared memory would run it,
// all head dims, and bits.
#include "kernel/mma/mma_kernel.hpp"

#include <fmt/format.h>

#include "kernel/kernel_driver.hpp"
#include "kernel/kernel_suite.hpp"
#include "kernel/mma/call.hpp"
#include "mirror.hpp"

namespace rotunda {
namespace {

using testing::KernelDriver;

/// The kernel where a block may have less shared memory than here.
class SmallMma final : public Kernel {
 public:
  explicit SmallMma(int kibibytes) : kibibytes_(kibibytes) {}
  [[nodiscard]] std::string name() const override { return fmt::format("mma_in_{}_KiB", kibibytes_); }
  [[nodiscard]] KernelCapabilities capabilities() const override { return mma_kernel().capabilities(); }
  [[nodiscard]] std::string description() const override { return mma_kernel().description(); }
  [[nodiscard]] std::optional<std::string> refuse(const Problem& problem, const Device& device) const override {
    return mma_kernel().refuse(problem, device);
  }
  [[nodiscard]] std::int64_t workspace_bytes(const Problem& problem, const CallShape& call) const override {
    return mma_kernel().workspace_bytes(problem, call);
  }
  void forward(const ForwardArgs& args, const KernelContext& context) const override {
    mma::forward(args, kibibytes_ << 10, context.stream);
  }
  void backward(const BackwardArgs& args, const KernelContext& context) const override {
    mma::backward(args, kibibytes_ << 10, context.stream);
  }

 private:
  int kibibytes_;
};

const SmallMma kOf80(163), kOf86(99);

INSTANTIATE_TEST_SUITE_P(mma, KernelSuite, ::testing::ValuesIn(suite_cases({&kOf80, &kOf86})), kernel_test_name);

class MmaTest : public testing::GpuTest, public ::testing::WithParamInterface<SuiteCase> {
 protected:
  [[nodiscard]] static const Kernel& kernel() { return *GetParam().kernel; }

  static void check(const std::string& text, int calls) {
    SCOPED_TRACE(fmt::format("{} in {} calls", text, calls));
    const Problem problem = parse_problem(text);
    ASSERT_TRUE(testing::serves(kernel(), problem));
    KernelDriver driver(kernel(), problem, {.seed = 1});
    driver.run(testing::cut_keys(problem, mask_slices(problem), calls));
    testing::expect_right(driver);
  }
};

TEST_P(MmaTest, ServesEveryHeadDim) {
  for (const int d : {8,   16,  24,  32,  48,  56,  64,  72,  80,  96,  104, 112, 128, 136,
                      160, 192, 200, 224, 256, 264, 320, 328, 384, 392, 448, 456, 504, 512}) {
    check(fmt::format("dtype={} s_q=130 s_k=97 h_q=2 h_kv=1 d={} mask=causal max_logit=1 grad=1",
                      d % 16 == 0 ? "bf16" : "fp16", d),
          d % 3 + 1);
  }
}

TEST_P(MmaTest, ServesUnequalHeadDims) {
  for (const auto& [d, d_v] : {std::pair{8, 512},
                               {512, 8},
                               {64, 128},
                               {192, 128},
                               {128, 192},
                               {72, 264},
                               {320, 256},
                               {256, 320},
                               {136, 40},
                               {504, 512}}) {
    check(fmt::format("dtype=fp16 b=2 s_q=70 s_k=133 h_q=4 h_kv=2 d={} d_v={} mask=none window=40,20 grad=1", d, d_v),
          2);
  }
}

TEST_P(MmaTest, ServesLongRowsOfEveryWidth) {
  for (const int d : {64, 128, 256, 512}) {
    check(fmt::format("s_q=400 s_k=700 h_q=2 h_kv=1 d={} mask=causal_bottom_right grad=1", d), 1);
    check(fmt::format("s_q=400 s_k=700 h_q=2 h_kv=1 d={} mask=none grad=1", d), 3);
  }
}

TEST_P(MmaTest, TenRunsGiveTheSameBits) {
  for (const int d : {64, 128, 256, 512}) {
    const Problem problem =
        parse_problem(fmt::format("b=2 s_q=300 h_q=6 h_kv=2 d={} mask=causal window=200,0 max_logit=1 grad=1", d));
    KernelDriver first(kernel(), problem, {.seed = 3});
    first.run();
    for (int i = 1; i < 10; ++i) {
      KernelDriver again(kernel(), problem, {.seed = 3});
      again.run();
      testing::expect_close(first, again, 0);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(mma, MmaTest, ::testing::ValuesIn(suite_cases({&mma_kernel(), &kOf80, &kOf86})),
                         kernel_test_name);

}  // namespace
}  // namespace rotunda
