// FlashAttention-4's kernels beyond the shared suites: many random problems at every width, batches that don't fold,
// graphs, and a process without Python.
#include "kernel/fa4/fa4_kernel.hpp"

#include <fmt/format.h>

#include <cstring>
#include <fstream>
#include <iterator>

#include "base/cuda/check.hpp"
#include "gpu/mirror.hpp"
#include "kernel/kernel_driver.hpp"
#include "support/random_problem.hpp"

namespace rotunda {
namespace {

using testing::KernelDriver;

class Fa4 : public testing::GpuTest {
 protected:
  const Kernel& kernel = fa4_kernel();
};

/// A random problem, its masks and slices, with the head dims and dtypes that fa4 serves.
Problem random_served(std::uint64_t seed) {
  testing::RandomLimits limits;
  limits.max_work = 1 << 16;
  Problem p = testing::random_problem(seed, limits);
  testing::Random random(seed + 1000);
  const auto dims = random.one_of<std::pair<int, int>>(
      {{8, 8}, {64, 64}, {72, 96}, {96, 40}, {128, 128}, {64, 128}, {192, 128}, {136, 16}, {256, 256}, {200, 256}});
  p.d = dims.first;
  p.d_v = dims.second;
  p.dtype = random.one_of({DType::bf16, DType::fp16});
  p.scale = 0;
  p.sink = Sink::none;
  p.max_logit = false;
  p.grad = true;
  normalize(p);
  return p;
}

TEST_F(Fa4, RandomProblems) {
  int with_pairs = 0;
  for (std::uint64_t seed = 0; seed < 500; ++seed) {
    const Problem problem = random_served(seed);
    SCOPED_TRACE(fmt::format("seed {}: {}", seed, to_text(problem)));
    ASSERT_TRUE(testing::serves(kernel, problem));
    KernelDriver driver(kernel, problem, {.seed = seed, .gap = seed % 3 == 0 ? 8 : 0});
    const int pieces = seed % 2 == 0 ? 1 : static_cast<int>(2 + seed % 4);
    driver.run(testing::cut_keys(problem, mask_slices(problem), pieces));
    testing::expect_right(driver);
    if (HasFailure()) return;
    with_pairs += mask_slices(problem).empty() ? 0 : 1;
  }
  EXPECT_GT(with_pairs, 300);
}

/// Gradients of the problem's dtype: where each KV head has one query head and each key one slice, dK and dV come
/// straight from the kernel.
TEST_F(Fa4, NarrowGradients) {
  for (const char* text : {"s_q=300 h_q=3 d=128 mask=causal grad=1", "b=2 s_q=200 s_k=330 h_q=2 d=64 mask=none grad=1",
                           "s_q=130 s_k=99 h_q=2 d=192 d_v=128 mask=causal_bottom_right grad=1",
                           "dtype=fp16 layout=sbhd b=3 s_q=140 h_q=2 d=256 mask=causal window=50,0 grad=1",
                           "layout=thd cu_q=0,70,70,131,300 used_q=65,0,61,100 h_q=2 d=96 mask=causal grad=1",
                           "layout=bhsd b=2 s_q=150 h_q=4 h_kv=2 d=128 mask=causal grad=1",
                           "s_q=150 s_k=260 h_q=2 d=72 mask=none window=10,90 prefix=40 grad=1"}) {
    SCOPED_TRACE(text);
    const Problem problem = parse_problem(text);
    KernelDriver driver(kernel, problem, {.seed = 11});
    Tensors& t = driver.tensors();
    std::vector<HostBuffer> buffers;
    for (TensorView* view : {&t.dq, &t.dk, &t.dv}) {
      const TensorView& v = *view;
      buffers.emplace_back(static_cast<std::int64_t>(size_of(problem.dtype)) * v.elements());
      *view = make_view(buffers.back().data(), problem.dtype, problem.layout, v.batch(), v.rows(), v.heads(), v.dim());
    }
    driver.run();
    testing::expect_right(driver);
  }
}

/// Entries of q lie at a distance that is neither rows nor heads, and k lies in another order than v.
TEST_F(Fa4, BatchesThatDoNotFold) {
  for (const char* text : {"b=3 s_q=130 h_q=4 h_kv=2 d=64 mask=causal lens_q=130,7,66 lens_k=130,7,66 grad=1",
                           "b=2 s_q=70 s_k=200 h_q=2 d=128 mask=causal_bottom_right deterministic=1 grad=1"}) {
    SCOPED_TRACE(text);
    const Problem problem = parse_problem(text);
    KernelDriver driver(kernel, problem, {.seed = 7});
    const HostBuffer apart(static_cast<std::int64_t>(sizeof(std::uint16_t)) * 2 * driver.tensors().q.elements());
    const HostBuffer turned(static_cast<std::int64_t>(sizeof(std::uint16_t)) * driver.tensors().k.elements());
    const auto move = [](TensorView& view, TensorView to) {
      testing::for_each_element(view, [&](auto b, auto row, auto head, auto i) {
        testing::write(to, b, row, head, i, testing::read(view, b, row, head, i));
      });
      view = to;
    };
    TensorView q = driver.tensors().q;
    q.data = apart.data();
    q.stride[0] += 8;
    move(driver.tensors().q, q);
    const TensorView& k = driver.tensors().k;
    move(driver.tensors().k, make_view(turned.data(), k.dtype, Layout::bhsd, k.batch(), k.rows(), k.heads(), k.dim()));
    driver.run();
    testing::expect_right(driver);
  }
}

/// Tensors of a problem on the device, and a forward and backward on them.
class DeviceCalls {
 public:
  DeviceCalls(const Kernel& kernel, const Problem& problem, std::uint64_t seed)
      : kernel_(kernel), problem_(problem), host_(kernel, problem, {.seed = seed}), slices_(mask_slices(problem)) {
    Tensors& t = host_.tensors();
    testing::fill_nearly_normal(t.lse, seed, testing::Stream::q);  // delta's values; lse itself is written
    for (TensorView* view : {&t.q, &t.k, &t.v, &t.out, &t.lse, &t.dout, &t.dq, &t.dk, &t.dv}) take(*view);
    take(t.lse);
    delta_ = views_.back();
    for (const bool backward : {false, true}) {
      CallShape shape = whole_call(problem, slices_, backward);
      shape.device = cuda_device(0);
      bytes_ = std::max(bytes_, kernel.workspace_bytes(problem, shape));
    }
    workspace_ = DeviceMemory(cuda_device(0), bytes_);
    set_bytes(workspace_.data(), 0xff, bytes_, cuda_device(0), stream_.get());
  }

  /// Puts another problem's inputs in these places.
  void fill_from(DeviceCalls& other) {
    for (const std::size_t i : {0, 1, 2, 5, 9}) copy(memory_[i], other.memory_[i]);
    synchronize(cuda_device(0), stream_.get());
  }

  void enqueue() {
    const KernelContext context{
        pool_, {workspace_.data(), static_cast<std::size_t>(bytes_)}, cuda_device(0), stream_.get()};
    ForwardArgs forward;
    forward.slices = slices_;
    forward.q = views_[0];
    forward.k = views_[1];
    forward.v = views_[2];
    forward.out = views_[3];
    forward.lse = views_[4];
    forward.heads.group = problem_.h_q / problem_.h_kv;
    forward.scale = problem_.scale;
    kernel_.forward(forward, context);
    BackwardArgs backward;
    backward.slices = slices_;
    backward.q = views_[0];
    backward.k = views_[1];
    backward.v = views_[2];
    backward.dout = views_[5];
    backward.lse = views_[4];
    backward.delta = delta_;
    backward.dq = views_[6];
    backward.dk = views_[7];
    backward.dv = views_[8];
    backward.heads = forward.heads;
    backward.scale = problem_.scale;
    backward.deterministic = problem_.deterministic;
    kernel_.backward(backward, context);
  }

  [[nodiscard]] std::vector<std::vector<std::byte>> results() {
    std::vector<std::vector<std::byte>> all;
    for (const std::size_t i : {3, 4, 6, 7, 8}) {
      all.emplace_back(static_cast<std::size_t>(memory_[i].bytes()));
      copy_bytes(all.back().data(), memory_[i].data(), memory_[i].bytes(), cuda_device(0), stream_.get());
    }
    return all;
  }
  [[nodiscard]] Stream stream() const { return stream_.get(); }

 private:
  void take(const TensorView& view) {
    const std::int64_t bytes = view.bytes();
    memory_.emplace_back(cuda_device(0), bytes);
    copy_bytes(memory_.back().data(), view.data, bytes, cuda_device(0), stream_.get());
    views_.push_back(view);
    views_.back().data = memory_.back().data();
  }
  void copy(const DeviceMemory& to, const DeviceMemory& from) {
    copy_bytes(to.data(), from.data(), to.bytes(), cuda_device(0), stream_.get());
  }

  const Kernel& kernel_;
  Problem problem_;
  KernelDriver host_;
  std::vector<Slice> slices_;
  OwnedStream stream_{cuda_device(0)};
  ThreadPool pool_{1};
  std::vector<DeviceMemory> memory_;
  std::vector<TensorView> views_;
  TensorView delta_;
  DeviceMemory workspace_;
  std::int64_t bytes_ = 0;
};

TEST_F(Fa4, GraphReplaysEqualCalls) {
  for (const char* text : {"s_q=300 h_q=4 h_kv=2 d=128 mask=causal deterministic=1 grad=1",
                           "b=2 s_q=200 h_q=2 d=192 d_v=128 mask=causal prefix=70 deterministic=1 grad=1"}) {
    SCOPED_TRACE(text);
    const Problem problem = parse_problem(text);
    DeviceCalls captured(kernel, problem, 1);
    captured.enqueue();
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t executable = nullptr;
    cudaStream_t stream = cuda::native(captured.stream());
    ROTUNDA_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    captured.enqueue();
    ROTUNDA_CUDA(cudaStreamEndCapture(stream, &graph));
    ROTUNDA_CUDA(cudaGraphInstantiate(&executable, graph, 0));
    for (std::uint64_t replay = 0; replay < 50; ++replay) {
      DeviceCalls eager(kernel, problem, 100 + replay);
      captured.fill_from(eager);
      ROTUNDA_CUDA(cudaGraphLaunch(executable, stream));
      eager.enqueue();
      ASSERT_EQ(captured.results(), eager.results()) << "replay " << replay;
    }
    ROTUNDA_CUDA(cudaGraphExecDestroy(executable));
    ROTUNDA_CUDA(cudaGraphDestroy(graph));
  }
}

TEST_F(Fa4, NoPythonInTheProcess) {
  DeviceCalls calls(kernel, parse_problem("s_q=64 h_q=1 d=64 mask=none grad=1"), 1);
  calls.enqueue();
  std::ifstream file("/proc/self/maps");
  const std::string maps{std::istreambuf_iterator<char>(file), {}};
  EXPECT_NE(maps.find("libcuda"), std::string::npos);
  EXPECT_EQ(maps.find("libpython"), std::string::npos);
}

}  // namespace
}  // namespace rotunda
