// The sm90 backward of head dims above 256 beyond the shared suite: workspaces that hold little, 16-bit gradients, bits
// and graphs.
#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include "base/cuda/check.hpp"
#include "kernel/kernel_driver.hpp"
#include "kernel/kernel_suite.hpp"
#include "kernel/reference/cuda/cuda_reference_kernel.hpp"
#include "kernel/sm90/sm90_kernel.hpp"
#include "kernel/sm90/wide/backward.hpp"
#include "mirror.hpp"

namespace rotunda {
namespace {

using testing::KernelDriver;
using testing::Mirror;

/// sm90's backward with a bound of the room for P and dS, and the reference kernel's forward.
class BackwardKernel final : public Kernel {
 public:
  BackwardKernel(const char* name, std::int64_t pool_bytes) : name_(name), pool_bytes_(pool_bytes) {}

  [[nodiscard]] std::string name() const override { return name_; }
  [[nodiscard]] KernelCapabilities capabilities() const override { return sm90_kernel().capabilities(); }
  [[nodiscard]] std::string description() const override { return sm90_kernel().description(); }
  [[nodiscard]] std::optional<std::string> refuse(const Problem& problem, const Device& device) const override {
    return sm90_kernel().refuse(problem, device);
  }
  [[nodiscard]] std::int64_t workspace_bytes(const Problem& problem, const CallShape& call) const override {
    if (!call.backward) return cuda_reference_kernel().workspace_bytes(problem, call);
    return sm90::wide::backward_workspace_bytes(problem, call, pool_bytes_);
  }
  void forward(const ForwardArgs& args, const KernelContext& context) const override {
    cuda_reference_kernel().forward(args, context);
  }
  void backward(const BackwardArgs& args, const KernelContext& context) const override {
    sm90::wide::backward(args, context, pool_bytes_);
  }

 private:
  const char* name_;
  std::int64_t pool_bytes_;
};

const Kernel& whole_kernel() {
  static const BackwardKernel kernel("sm90_backward", 0);
  return kernel;
}

/// No more room than one query tile needs: as many chunks as there are query tiles.
const Kernel& cut_kernel() {
  static const BackwardKernel kernel("sm90_backward_in_many_chunks", 1);
  return kernel;
}

INSTANTIATE_TEST_SUITE_P(backward, KernelSuite,
                         ::testing::Values(SuiteCase{&whole_kernel(), true}, SuiteCase{&cut_kernel(), true}),
                         kernel_test_name);

class WideBackward : public testing::GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    if (IsSkipped()) return;
    const auto reason = sm90_kernel().refuse(parse_problem("s_q=8 h_q=1 d=512 grad=1"), device);
    if (reason) GTEST_SKIP() << *reason;
  }
};

TEST_F(WideBackward, ServesLongRowsInManyChunks) {
  for (const char* text : {"s_q=1000 h_q=4 h_kv=2 d=512 mask=causal grad=1",
                           "dtype=fp16 layout=thd cu_q=0,65,65,700,1300 h_q=2 h_kv=1 d=328 mask=causal grad=1",
                           "s_q=700 s_k=1100 h_q=2 d=264 mask=none window=300,100 grad=1"}) {
    SCOPED_TRACE(text);
    KernelDriver driver(cut_kernel(), parse_problem(text), {.seed = 1});
    driver.run();
    testing::expect_right(driver);
  }
}

/// Packed copies, halves and lines: each width of a gradient tile, and head dims on both sides of what tells them
/// apart.
TEST_F(WideBackward, ServesHeadDims) {
  for (const char* dims : {"d=264", "d=272", "d=288", "d=296", "d=320", "d=328", "d=384", "d=392", "d=416", "d=424",
                           "d=448", "d=456", "d=504", "d=512 d_v=264", "d=264 d_v=512"}) {
    for (const char* text :
         {"dtype=bf16 s_q=300 h_q=4 h_kv=2 mask=causal grad=1",
          "dtype=fp16 layout=thd cu_q=0,130,200,333 used_q=130,50,100 h_q=3 h_kv=1 mask=none grad=1"}) {
      const std::string problem = fmt::format("{} {}", text, dims);
      SCOPED_TRACE(problem);
      KernelDriver driver(whole_kernel(), parse_problem(problem), {.seed = 3});
      driver.run();
      testing::expect_right(driver);
    }
  }
}

TEST_F(WideBackward, WritesGradientsOfTheProblemsDType) {
  for (const char* text :
       {"dtype=bf16 s_q=300 s_k=520 h_q=4 h_kv=2 d=512 mask=causal_bottom_right grad=1",
        "dtype=fp16 layout=thd cu_q=0,70,300,500 used_q=70,200,130 h_q=2 d=328 mask=causal grad=1"}) {
    for (const Kernel* kernel : {&whole_kernel(), &cut_kernel()}) {
      SCOPED_TRACE(text);
      KernelDriver driver(*kernel, parse_problem(text), {.seed = 7});
      std::vector<HostBuffer> memory;
      for (TensorView* view : {&driver.tensors().dq, &driver.tensors().dk, &driver.tensors().dv}) {
        memory.emplace_back(view->elements() * 2);
        *view = make_view(memory.back().data(), driver.problem().dtype, Layout::bshd, view->batch(), view->rows(),
                          view->heads(), view->dim());
      }
      driver.run();
      testing::expect_right(driver);
    }
  }
}

TEST_F(WideBackward, SameBitsInTenRunsOfManyChunks) {
  const Problem problem = parse_problem("s_q=900 h_q=4 h_kv=2 d=512 mask=causal deterministic=1 grad=1");
  KernelDriver first(cut_kernel(), problem, {.seed = 9}), other(cut_kernel(), problem, {.seed = 9});
  first.run();
  for (int run = 1; run < 10; ++run) {
    other.run();
    testing::expect_close(first, other, 0);
  }
}

/// Device memory for one problem's backward, with made-up statistics of its rows.
class DeviceBackward {
 public:
  DeviceBackward(const Device& device, const Problem& problem, Stream stream)
      : device_(device), problem_(problem), stream_(stream), slices_(mask_slices(problem)) {
    const auto make = [&](DType dtype, std::int64_t rows, int heads, int dim) {
      return Mirror(device, dtype, {problem.layout, problem.batches(), rows, heads, dim, 0, 0});
    };
    q_ = make(problem.dtype, problem.s_q, problem.h_q, problem.d);
    dout_ = make(problem.dtype, problem.s_q, problem.h_q, problem.d_v);
    k_ = make(problem.dtype, problem.s_k, problem.h_kv, problem.d);
    v_ = make(problem.dtype, problem.s_k, problem.h_kv, problem.d_v);
    lse_ = make(DType::fp32, problem.s_q, problem.h_q, 1);
    delta_ = make(DType::fp32, problem.s_q, problem.h_q, 1);
    dq_ = make(DType::fp32, problem.s_q, problem.h_q, problem.d);
    dk_ = make(DType::fp32, problem.s_k, problem.h_kv, problem.d);
    dv_ = make(DType::fp32, problem.s_k, problem.h_kv, problem.d_v);
    testing::fill(lse_->host(), 6);
    delta_->randomize(5);
    randomize(1);
    for (const auto* statistics : {&lse_, &delta_}) (*statistics)->upload(stream);
    CallShape shape = whole_call(problem, slices_, true);
    shape.device = device;
    workspace_ = DeviceMemory(device, cut_kernel().workspace_bytes(problem, shape));
  }

  void randomize(std::uint64_t seed) const {
    for (const auto* input : {&q_, &dout_, &k_, &v_}) {
      (*input)->randomize(seed++);
      (*input)->upload(stream_);
    }
    set_bytes(workspace_.data(), 0xff, workspace_.bytes(), device_, stream_);
    for (const auto* output : {&dq_, &dk_, &dv_}) (*output)->upload_all(stream_);
  }
  void run() {
    cut_kernel().backward(
        {.slices = slices_,
         .q = q_->device(),
         .k = k_->device(),
         .v = v_->device(),
         .dout = dout_->device(),
         .lse = lse_->device(),
         .delta = delta_->device(),
         .dq = dq_->device(),
         .dk = dk_->device(),
         .dv = dv_->device(),
         .heads = {.group = problem_.h_q / problem_.h_kv},
         .scale = problem_.scale},
        {threads_, {workspace_.data(), static_cast<std::size_t>(workspace_.bytes())}, device_, stream_});
  }
  [[nodiscard]] std::vector<double> results() const {
    std::vector<double> all;
    for (const auto* output : {&dq_, &dk_, &dv_}) {
      (*output)->fetch(stream_);
      const std::vector<double> values = testing::to_vector((*output)->fetched());
      all.insert(all.end(), values.begin(), values.end());
    }
    return all;
  }

 private:
  Device device_;
  Problem problem_;
  Stream stream_;
  std::vector<Slice> slices_;
  ThreadPool threads_{1};
  std::optional<Mirror> q_, k_, v_, dout_, lse_, delta_, dq_, dk_, dv_;
  DeviceMemory workspace_;
};

TEST_F(WideBackward, ReplayedGraphsEqualCalls) {
  const Problem problem = parse_problem("s_q=400 h_q=4 h_kv=2 d=264 mask=causal grad=1");
  DeviceBackward call(device, problem, stream());
  call.run();
  const std::vector<double> first = call.results();
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  ROTUNDA_CUDA(cudaStreamBeginCapture(cuda::native(stream()), cudaStreamCaptureModeThreadLocal));
  call.run();
  ROTUNDA_CUDA(cudaStreamEndCapture(cuda::native(stream()), &graph));
  ROTUNDA_CUDA(cudaGraphInstantiate(&executable, graph, 0));
  const auto replayed = [&](std::uint64_t seed) {
    call.randomize(seed);
    ROTUNDA_CUDA(cudaGraphLaunch(executable, cuda::native(stream())));
    return call.results();
  };
  EXPECT_EQ(replayed(1), first);
  const std::vector<double> other = replayed(20);
  EXPECT_NE(other, first);
  call.randomize(20);
  call.run();
  EXPECT_EQ(call.results(), other);
  ROTUNDA_CUDA(cudaGraphExecDestroy(executable));
  ROTUNDA_CUDA(cudaGraphDestroy(graph));
}

}  // namespace
}  // namespace rotunda
