// The sm90 kernel beyond the shared suite: the matrix of wide heads, long rows, bits, graphs whose slices change.
#include "kernel/sm90/sm90_kernel.hpp"

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <cmath>
#include <limits>
#include <thread>

#include "base/cuda/check.hpp"
#include "kernel/kernel_driver.hpp"
#include "kernel/reference/cuda/cuda_reference_kernel.hpp"
#include "mirror.hpp"

namespace rotunda {
namespace {

using testing::KernelDriver;
using testing::Mirror;

class Sm90 : public testing::GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    if (IsSkipped()) return;
    const auto reason = sm90_kernel().refuse(parse_problem("s_q=8 h_q=1 d=512"), device);
    if (reason) GTEST_SKIP() << *reason;
  }
  /// Whether gradients are served too.
  [[nodiscard]] static int grad() {
    return sm90_kernel().refuse(parse_problem("s_q=8 h_q=1 d=512 grad=1"), {}) ? 0 : 1;
  }
  /// Against float64; `text` without grad.
  static void check(const std::string& text, const testing::TensorOptions& options = {}) {
    SCOPED_TRACE(text);
    KernelDriver driver(sm90_kernel(), parse_problem(fmt::format("{} grad={}", text, grad())), options);
    driver.run();
    const int threads = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
    testing::expect_right(driver, oracle(driver.problem(), driver.tensors(), threads));
  }
};

/// The masks of the matrix, by their first key: dense layouts and packed ones, whose last document has padding.
struct MatrixMask {
  const char *dense, *packed;
};
constexpr MatrixMask kMasks[] = {
    {"s_q=150 s_k=150 mask=causal", "cu_q=0,70,200 used_q=60,129 mask=causal"},
    {"s_q=130 s_k=270 mask=causal_bottom_right",
     "cu_q=0,70,140 cu_k=0,140,300 used_q=60,70 used_k=140,131 mask=causal_bottom_right"},
    {"s_q=140 s_k=257 mask=none", "cu_q=0,70,200 cu_k=0,20,160 used_q=60,129 used_k=17,140 mask=none"},
    {"s_q=150 s_k=150 mask=causal window=33,0", "cu_q=0,70,200 used_q=60,129 mask=causal window=33,0"},
    {"s_q=150 s_k=150 mask=none window=20,20", "cu_q=0,70,200 used_q=60,129 mask=none window=20,20"},
    {"s_q=150 s_k=150 mask=none window=0,0", "cu_q=0,70,200 used_q=60,129 mask=none window=0,0"},
};
constexpr const char* kHeads[] = {"h_q=8 h_kv=4", "h_q=3", "h_q=4 h_kv=1"};

class Sm90Matrix : public Sm90, public ::testing::WithParamInterface<int> {};

TEST_P(Sm90Matrix, IsRight) {
  const int d = GetParam();
  std::uint64_t seed = static_cast<std::uint64_t>(d);
  for (const char* dtype : {"bf16", "fp16"}) {
    for (const MatrixMask& mask : kMasks) {
      for (const char* layout : {"bshd", "sbhd", "thd"}) {
        const bool packed = std::string(layout) == "thd";
        const char* heads = kHeads[seed++ % std::size(kHeads)];
        check(fmt::format("dtype={} layout={} {} {} d={} {} max_logit=1", dtype, layout, packed ? "" : "b=2", heads, d,
                          packed ? mask.packed : mask.dense),
              {.seed = seed, .gap = seed % 2 == 0 ? 8 : 0});
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(HeadDims, Sm90Matrix, ::testing::Values(264, 320, 344, 384, 408, 448, 472, 504, 512),
                         [](const auto& one) { return fmt::format("d{}", one.param); });

TEST_F(Sm90, ServesOddLengths) {
  for (const int s_q : {1, 63, 65, 1000}) {
    for (const int s_k : {1, 63, 65, 1000}) {
      for (const char* mask : {"none", "causal", "causal_bottom_right"}) {
        if (s_q * s_k == 1000000 && std::string(mask) == "none")
          continue;  // long to check, and no odder than the others
        check(fmt::format("s_q={} s_k={} h_q=2 h_kv=1 d=512 mask={}", s_q, s_k, mask));
      }
    }
  }
}

TEST_F(Sm90, ServesDifferentHeadDimsOfValues) {
  check("s_q=150 s_k=260 h_q=2 d=512 d_v=264 mask=causal_bottom_right");
  check("s_q=150 s_k=260 h_q=4 h_kv=2 d=280 d_v=496 mask=none");
  check("s_q=150 s_k=260 h_q=6 h_kv=2 d=264 d_v=392 mask=causal");
}

/// Of head dims that are odd multiples of 8, boxes of a shifted head begin in the rows of its neighbour.
TEST_F(Sm90, ANaNStaysInItsHead) {
  constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
  const Problem problem = parse_problem(fmt::format("s_q=200 h_q=4 d=264 mask=causal grad={}", grad()));
  for (const auto field : {&Tensors::q, &Tensors::k, &Tensors::v}) {
    for (const int head : {0, 1, 2}) {
      KernelDriver driver(sm90_kernel(), problem, {.seed = 4});
      for (const int element : {0, 7, 256, 263}) testing::write(driver.tensors().*field, 0, 3, head, element, kNaN);
      driver.run();
      const Tensors& t = driver.tensors();
      EXPECT_TRUE(std::isnan(testing::read(t.out, 0, 3, head, 0))) << "a NaN was hidden";
      for (const TensorView& view : {t.out, t.dq, t.dk, t.dv}) {
        for (int other = 0; other < 4 && view.data != nullptr; ++other) {
          if (other == head) continue;
          for (const int element : {0, 7, 8, 263}) {
            EXPECT_TRUE(std::isfinite(testing::read(view, 0, 3, other, element))) << head << " reached " << other;
          }
        }
      }
    }
  }
}

/// Clusters draw their items, so who computes what differs from run to run.
TEST_F(Sm90, SameBitsInTenRuns) {
  for (const char* text : {"b=2 s_q=1700 h_q=6 h_kv=2 d=512 mask=causal max_logit=1",
                           "layout=thd cu_q=0,300,1000,1100,2500 h_q=5 d=320 mask=none"}) {
    SCOPED_TRACE(text);
    const Problem problem = parse_problem(fmt::format("{} deterministic=1 grad={}", text, grad()));
    KernelDriver first(sm90_kernel(), problem, {.seed = 3}), other(sm90_kernel(), problem, {.seed = 3});
    first.run();
    for (int run = 1; run < 10; ++run) {
      other.run();
      testing::expect_close(first, other, 0);
    }
  }
}

/// Device memory for one problem's forward, and calls on it.
class DeviceForward {
 public:
  DeviceForward(const Device& device, const Problem& problem, std::int64_t slice_capacity, Stream stream)
      : device_(device),
        problem_(problem),
        stream_(stream),
        q(device, problem.dtype, form(problem.s_q, problem.h_q, problem.d)),
        k(device, problem.dtype, form(problem.s_k, problem.h_kv, problem.d)),
        v(device, problem.dtype, form(problem.s_k, problem.h_kv, problem.d_v)),
        out(device, problem.dtype, form(problem.s_q, problem.h_q, problem.d_v)),
        lse(testing::row_mirror(device, form(problem.s_q, problem.h_q, 1))),
        slices_(static_cast<std::size_t>(slice_capacity)),
        list_(device, slice_capacity * static_cast<std::int64_t>(sizeof(Slice))) {
    std::uint64_t seed = 11;
    for (const Mirror* input : {&q, &k, &v}) {
      input->randomize(seed++);
      input->upload(stream);
    }
  }

  /// The slices in the device's memory; the rest of the capacity holds empty ones.
  void set_slices(const std::vector<Slice>& slices) {
    std::fill(slices_.begin(), slices_.end(), Slice{});
    std::copy(slices.begin(), slices.end(), slices_.begin());
    copy_bytes(list_.data(), slices_.data(), list_.bytes(), device_, stream_);
    synchronize(device_, stream_);
  }
  void poison() const {
    for (const Mirror* output : {&out, &lse}) output->upload_all(stream_);
  }
  void run(const Kernel& kernel, Stream stream) {
    CallShape shape = whole_call(problem_, slices_, false);
    shape.device = device_;
    if (workspace_.bytes() == 0) workspace_ = DeviceMemory(device_, kernel.workspace_bytes(problem_, shape) + 1);
    kernel.forward({.slices = slices_,
                    .q = q.device(),
                    .k = k.device(),
                    .v = v.device(),
                    .acc = {},
                    .lse = lse.device(),
                    .out = out.device(),
                    .heads = {.group = problem_.h_q / problem_.h_kv},
                    .scale = problem_.scale,
                    .device_slices = reinterpret_cast<const Slice*>(list_.data())},
                   {threads_, {workspace_.data(), static_cast<std::size_t>(workspace_.bytes())}, device_, stream});
  }
  /// out and lse on the host.
  [[nodiscard]] std::vector<double> results() const {
    std::vector<double> all;
    for (const Mirror* output : {&out, &lse}) {
      output->fetch(stream_);
      const std::vector<double> values = testing::to_vector(output->fetched());
      all.insert(all.end(), values.begin(), values.end());
    }
    return all;
  }

 private:
  [[nodiscard]] testing::Form form(std::int64_t rows, std::int64_t heads, std::int64_t dim) const {
    return {problem_.layout, problem_.batches(), rows, heads, dim};
  }

  Device device_;
  Problem problem_;
  Stream stream_;

 public:
  Mirror q, k, v, out, lse;

 private:
  std::vector<Slice> slices_;
  DeviceMemory list_, workspace_;
  ThreadPool threads_{1};
};

std::vector<Slice> packed(const std::string& offsets) {
  return mask_slices(parse_problem(fmt::format("layout=thd cu_q={} h_q=1 d=8 mask=causal", offsets)));
}

TEST_F(Sm90, ReplayedGraphsFollowSlicesThatChange) {
  const Problem problem = parse_problem("layout=thd cu_q=0,1500 h_q=4 h_kv=2 d=512 mask=none");
  DeviceForward forward(device, problem, 4, stream());
  const char* const lists[] = {"0,400,1500", "0,10,700,1400", "0,1500", "0,129,300,555,1333"};
  forward.set_slices(packed(lists[0]));
  forward.run(sm90_kernel(), stream());  // what a first call prepares may not be captured
  synchronize(device, stream());

  cudaGraph_t graph = nullptr;
  cudaGraphExec_t replay = nullptr;
  ROTUNDA_CUDA(cudaStreamBeginCapture(cuda::native(stream()), cudaStreamCaptureModeThreadLocal));
  forward.run(sm90_kernel(), stream());
  ROTUNDA_CUDA(cudaStreamEndCapture(cuda::native(stream()), &graph));
  ROTUNDA_CUDA(cudaGraphInstantiate(&replay, graph, 0));
  for (const char* list : lists) {
    SCOPED_TRACE(list);
    forward.set_slices(packed(list));
    forward.poison();
    forward.run(sm90_kernel(), stream());
    const std::vector<double> eager = forward.results();
    forward.poison();
    ROTUNDA_CUDA(cudaGraphLaunch(replay, cuda::native(stream())));
    EXPECT_EQ(forward.results(), eager);
    forward.poison();
    forward.run(cuda_reference_kernel(), stream());
    const std::vector<double> want = forward.results();
    for (std::size_t i = 0; i < want.size(); ++i) {
      if (eager[i] == want[i]) continue;
      ASSERT_NEAR(eager[i], want[i], 4e-3 + 1e-2 * std::abs(want[i])) << i;
    }
  }
  ROTUNDA_CUDA(cudaGraphExecDestroy(replay));
  ROTUNDA_CUDA(cudaGraphDestroy(graph));
}

/// Sizes at which all clusters have several items.
TEST_F(Sm90, LongRowsEqualTheReference) {
  for (const char* text : {"s_q=5000 h_q=6 h_kv=2 d=512 mask=causal", "b=3 s_q=1111 s_k=2222 h_q=8 d=448 mask=none",
                           "s_q=6000 h_q=8 h_kv=4 d=264 mask=causal window=700,0",
                           "dtype=fp16 s_q=3000 h_q=7 d=384 mask=causal prefix=500 chunk=1024"}) {
    SCOPED_TRACE(text);
    const Problem problem = parse_problem(text);
    const std::vector<Slice> slices = mask_slices(problem);
    DeviceForward forward(device, problem, static_cast<std::int64_t>(slices.size()), stream());
    forward.set_slices(slices);
    forward.poison();
    forward.run(sm90_kernel(), stream());
    const std::vector<double> got = forward.results();
    forward.poison();
    forward.run(cuda_reference_kernel(), stream());
    const std::vector<double> want = forward.results();
    double error = 0, size = 0;
    for (std::size_t i = 0; i < want.size(); ++i) {
      if (got[i] == want[i]) continue;
      error += (got[i] - want[i]) * (got[i] - want[i]);
      size += want[i] * want[i];
      ASSERT_NEAR(got[i], want[i], 1e-2 + 2e-2 * std::abs(want[i])) << i;
    }
    EXPECT_LT(error, 16e-6 * size);  // root mean square 4e-3 of the values': a rounding to bf16
  }
}

}  // namespace
}  // namespace rotunda
