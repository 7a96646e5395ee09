// The sm90 backward of head dims above 256, with the forward of the reference kernel: against float64, over shapes,
// masks, slice lists and workspaces.
#include <fmt/format.h>

#include <random>

#include "kernel/kernel_driver.hpp"
#include "kernel/reference/cuda/cuda_reference_kernel.hpp"
#include "kernel/sm90/sm90_kernel.hpp"
#include "kernel/sm90/wide/backward.hpp"

namespace rotunda {
namespace {

using testing::Call;
using testing::KernelDriver;

/// pool_bytes: small ones make many chunks.
class WideBackward final : public Kernel {
 public:
  explicit WideBackward(std::int64_t pool_bytes = 0) : pool_bytes_(pool_bytes) {}

  [[nodiscard]] std::string name() const override { return "wide_backward"; }
  [[nodiscard]] KernelCapabilities capabilities() const override { return sm90_kernel().capabilities(); }
  [[nodiscard]] std::string description() const override { return name(); }
  [[nodiscard]] std::optional<std::string> refuse(const Problem& problem, const Device& device) const override {
    return sm90_kernel().refuse(problem, device);
  }
  [[nodiscard]] std::int64_t workspace_bytes(const Problem& problem, const CallShape& call) const override {
    return call.backward ? sm90::wide::backward_workspace_bytes(problem, call, pool_bytes_) : 0;
  }
  void forward(const ForwardArgs& args, const KernelContext& context) const override {
    cuda_reference_kernel().forward(args, context);
  }
  void backward(const BackwardArgs& args, const KernelContext& context) const override {
    sm90::wide::backward(args, context, pool_bytes_);
  }

 private:
  std::int64_t pool_bytes_;
};

constexpr std::int64_t kSmallestPool = 1;  ///< as many chunks as there are query tiles

class WideBackwardTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (cuda_device_count() == 0) GTEST_SKIP() << why_no_cuda();
    const Problem problem = parse_problem("s_q=1 h_q=1 d=512 mask=none grad=1");
    if (const auto reason = whole.refuse(problem, cuda_device(0))) GTEST_SKIP() << *reason;
  }

  static void check(const Kernel& kernel, const std::string& text, const testing::TensorOptions& options = {}) {
    SCOPED_TRACE(text);
    const Problem problem = parse_problem(text);
    KernelDriver driver(kernel, problem, options);
    driver.run();
    testing::expect_right(driver);
  }
  void check(const std::string& text, const testing::TensorOptions& options = {}) const { check(whole, text, options); }

  const WideBackward whole{}, cut{kSmallestPool};
};

TEST_F(WideBackwardTest, ServesWholeTiles) {
  check("s_q=128 s_k=256 h_q=1 d=512 mask=none grad=1", {.seed = 1});
  check("s_q=256 s_k=512 h_q=2 d=512 mask=none grad=1", {.seed = 2});
  check("s_q=256 s_k=256 h_q=1 d=512 mask=causal grad=1", {.seed = 3});
}

TEST_F(WideBackwardTest, ServesEveryHeadDimDTypeAndGrouping) {
  std::uint64_t seed = 10;
  for (const int d : {264, 320, 328, 384, 448, 504, 512}) {
    for (const char* dtype : {"bf16", "fp16"}) {
      for (const char* heads : {"h_q=2", "h_q=4 h_kv=2", "h_q=3 h_kv=1"}) {
        check(fmt::format("dtype={} s_q=130 s_k=300 {} d={} mask=causal_bottom_right grad=1", dtype, heads, d),
              {.seed = seed++});
      }
    }
  }
  check("s_q=130 s_k=300 h_q=2 h_kv=1 d=512 d_v=264 mask=causal grad=1", {.seed = seed++});
  check("s_q=130 s_k=300 h_q=2 h_kv=1 d=328 d_v=448 mask=causal grad=1", {.seed = seed++});
}

TEST_F(WideBackwardTest, ServesEveryMask) {
  std::uint64_t seed = 100;
  for (const char* mask :
       {"mask=none", "mask=causal", "mask=causal_bottom_right", "mask=causal window=100,0", "mask=none window=0,0",
        "mask=none window=70,70", "mask=none window=inf,20", "mask=causal prefix=90", "mask=causal chunk=96",
        "mask=causal window=10,0 prefix=5 chunk=240", "mask=none lens_q=300,0 lens_k=33,400",
        "mask=causal_bottom_right lens_q=300,20 lens_k=1,0"}) {
    for (const WideBackward* kernel : {&whole, &cut}) {
      check(*kernel, fmt::format("b=2 s_q=300 s_k=500 h_q=2 h_kv=1 d=320 {} grad=1", mask), {.seed = seed++});
    }
  }
}

TEST_F(WideBackwardTest, ServesOddLengths) {
  std::uint64_t seed = 200;
  for (const int s_q : {0, 1, 63, 65, 1000}) {
    for (const int s_k : {0, 1, 63, 65, 1000}) {
      check(fmt::format("s_q={} s_k={} h_q=2 h_kv=1 d=264 mask=causal_bottom_right grad=1", s_q, s_k),
            {.seed = seed++});
    }
  }
}

TEST_F(WideBackwardTest, ServesEveryLayoutWithPaddedStrides) {
  for (const char* layout : {"bshd", "sbhd", "bhsd"}) {
    for (const std::int64_t gap : {0, 8}) {
      check(fmt::format("layout={} b=2 s_q=137 s_k=266 h_q=4 h_kv=2 d=264 mask=causal grad=1", layout),
            {.seed = 300, .gap = gap});
    }
  }
  for (const WideBackward* kernel : {&whole, &cut}) {
    for (const std::int64_t gap : {0, 8}) {
      check(*kernel, "layout=thd cu_q=0,10,10,275,540 used_q=7,0,265,133 h_q=4 h_kv=2 d=264 mask=causal grad=1",
            {.seed = 301, .gap = gap});
    }
  }
}

TEST_F(WideBackwardTest, BuffersMayHoldAPartOfTheHeads) {
  const Problem problem = parse_problem("s_q=150 h_q=8 h_kv=4 d=264 mask=causal grad=1");
  KernelDriver all(whole, problem, {.seed = 4});
  all.run();
  KernelDriver parts(whole, problem, {.seed = 4});
  parts.run();
  testing::fill(parts.tensors().dk, 0);
  testing::fill(parts.tensors().dv, 0);
  testing::fill(parts.tensors().dq, testing::kNaN);
  const Tensors full = parts.tensors();
  const HeadMap map = parts.heads;
  for (const auto& [first, count] : {std::pair{0, 3}, std::pair{3, 4}, std::pair{7, 1}}) {
    parts.restrict_heads(first, count);
    parts.backward_call(parts.whole(), true, false);
    parts.use(full, map);
  }
  testing::expect_right(parts);
  EXPECT_EQ(testing::largest_difference(all.tensors().dq, full.dq), 0);
  EXPECT_LE(testing::largest_difference(all.tensors().dk, full.dk), 2e-5);
  EXPECT_LE(testing::largest_difference(all.tensors().dv, full.dv), 2e-5);
}

/// dq, dk, dv of the problem's dtype in the driver's place, and back.
class NarrowGradients {
 public:
  explicit NarrowGradients(KernelDriver& driver) {
    for (TensorView* view : {&driver.tensors().dq, &driver.tensors().dk, &driver.tensors().dv}) {
      memory_.emplace_back(2 * std::max<std::int64_t>(view->elements(), 1) * view->stride[3]);
      *view = make_view(memory_.back().data(), driver.problem().dtype, Layout::bshd, view->batch(), view->rows(),
                        view->heads(), view->dim());
    }
  }

 private:
  std::vector<HostBuffer> memory_;
};

TEST_F(WideBackwardTest, WritesGradientsOfTheProblemsDType) {
  for (const char* text :
       {"dtype=bf16 s_q=300 s_k=520 h_q=4 h_kv=2 d=512 mask=causal_bottom_right grad=1",
        "dtype=fp16 layout=thd cu_q=0,70,300,500 used_q=70,200,130 h_q=2 d=328 mask=causal grad=1"}) {
    for (const WideBackward* kernel : {&whole, &cut}) {
      SCOPED_TRACE(text);
      KernelDriver driver(*kernel, parse_problem(text), {.seed = 7});
      const NarrowGradients narrow(driver);
      driver.run();
      testing::expect_right(driver);
    }
  }
}

TEST_F(WideBackwardTest, AddsUpOverCalls) {
  const Problem problem = parse_problem("layout=thd cu_q=0,140,141,400 h_q=4 h_kv=2 d=264 mask=causal grad=1");
  for (const WideBackward* kernel : {&whole, &cut}) {
    for (const int pieces : {2, 5}) {
      KernelDriver driver(*kernel, problem, {.seed = 8});
      driver.run(testing::cut_keys(problem, mask_slices(problem), pieces));
      testing::expect_right(driver);
    }
  }
  KernelDriver once(whole, problem, {.seed = 8}), split(whole, problem, {.seed = 8});
  once.run();
  Call call = split.whole();
  call.slices = testing::cut_rows(call.slices, 50);
  std::reverse(call.slices.begin(), call.slices.end());
  split.run({call});
  testing::expect_right(split);
  once.backward_call(once.whole(), false, false);  // twice the gradients
  for (const auto field : {&Tensors::dq, &Tensors::dk, &Tensors::dv}) {
    const TensorView& twice = once.tensors().*field;
    testing::for_each_element(twice, [&](auto b, auto row, auto head, auto dim) {
      testing::write(twice, b, row, head, dim, testing::read(twice, b, row, head, dim) / 2);
    });
  }
  testing::expect_right(once);
}

TEST_F(WideBackwardTest, GivesTheSameBitsEveryTime) {
  for (const WideBackward* kernel : {&whole, &cut}) {
    const Problem problem = parse_problem("s_q=900 h_q=4 h_kv=2 d=512 mask=causal deterministic=1 grad=1");
    KernelDriver one(*kernel, problem, {.seed = 9});
    one.run();
    KernelDriver other(*kernel, problem, {.seed = 9});
    other.run();
    for (int i = 0; i < 9; ++i) {
      other.backward({other.whole()});
      testing::expect_close(one, other, 0);
    }
  }
}

TEST_F(WideBackwardTest, PoisonedDocumentLeavesTheOthersBits) {
  const Problem problem = parse_problem("layout=thd cu_q=0,120,273,430 h_q=2 d=264 mask=causal deterministic=1 grad=1");
  KernelDriver clean(whole, problem, {.seed = 6}), poisoned(whole, problem, {.seed = 6});
  clean.run();
  const Tensors& t = poisoned.tensors();
  for (const TensorView* view : {&t.q, &t.k, &t.v, &t.dout}) testing::fill(view->narrow_rows(120, 153), testing::kNaN);
  poisoned.run();
  for (const auto field : {&Tensors::dq, &Tensors::dk, &Tensors::dv}) {
    for (const auto& [begin, count] : {std::pair{0, 120}, std::pair{273, 157}}) {
      EXPECT_EQ(testing::largest_difference((clean.tensors().*field).narrow_rows(begin, count),
                                            (t.*field).narrow_rows(begin, count)),
                0);
    }
  }
}

/// Keys fall into segments, and within a segment query rows into ranges with bands of their own.
std::vector<Slice> random_slices(std::mt19937_64& random, std::int64_t batches, std::int64_t s_q, std::int64_t s_k) {
  const auto below = [&](std::int64_t n) {
    return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(n));
  };
  const auto edge = [&] { return below(4) == 0 ? kInfinity : below(200) - 50; };
  std::vector<Slice> slices;
  for (std::int64_t b = 0; b < batches; ++b) {
    for (std::int64_t key = below(3); key < s_k;) {
      const std::int64_t k_len = std::min(s_k - key, 1 + below(s_k));
      for (std::int64_t row = below(s_q + 1); row < s_q;) {
        const std::int64_t q_len = std::min(s_q - row, 1 + below(s_q));
        slices.push_back({b, row, q_len, key, k_len, below(300) - 150, below(300) - 150, edge(), edge()});
        row += q_len + below(3);
      }
      key += k_len + below(3);
    }
  }
  std::shuffle(slices.begin(), slices.end(), random);
  return slices;
}

TEST_F(WideBackwardTest, ServesRandomSliceLists) {
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    std::mt19937_64 random(seed);
    const auto pick = [&](auto... values) {
      const int list[] = {values...};
      return list[random() % sizeof...(values)];
    };
    Problem problem;
    problem.dtype = static_cast<DType>(pick(0, 1));
    problem.layout = static_cast<Layout>(pick(0, 1, 2, 3));
    problem.b = problem.layout == Layout::thd ? 1 : pick(1, 2);
    problem.s_q = pick(1, 2, 65, 130, 200);
    problem.s_k = pick(1, 3, 63, 129, 290);
    problem.h_kv = pick(1, 2);
    problem.h_q = problem.h_kv * pick(1, 2);
    problem.d = pick(264, 320, 384, 512);
    problem.d_v = pick(0, 1) != 0 ? problem.d : 264;
    problem.grad = true;
    if (problem.layout == Layout::thd) {
      problem.cu_q = {0, problem.s_q};
      problem.cu_k = {0, problem.s_k};
    }
    const std::vector<Slice> slices = random_slices(random, problem.batches(), problem.s_q, problem.s_k);
    problem.slices = slices;
    normalize(problem);
    SCOPED_TRACE(fmt::format("seed {}: {}", seed, to_text(problem)));
    KernelDriver driver(pick(0, 1) != 0 ? whole : cut, problem, {.seed = seed});
    driver.run(pick(0, 1) != 0 ? testing::cut_keys(problem, slices, pick(2, 3))
                               : std::vector<Call>{{slices, 0, problem.s_k}});
    testing::expect_right(driver);
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace rotunda
