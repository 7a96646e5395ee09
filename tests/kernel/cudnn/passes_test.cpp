// The kernel's two passes with an attention on the host in cuDNN's place: it reads what a graph's key and arrays say,
// and leaves alone what cuDNN leaves alone. Everything but the library itself is tested so, with no GPU.
#include "kernel/cudnn/passes.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <memory>

#include "kernel/cudnn/needs.hpp"
#include "kernel/kernel_driver.hpp"
#include "support/random_problem.hpp"

namespace rotunda::cudnn {
namespace {

using rotunda::testing::fill;
using rotunda::testing::for_each_element;
using rotunda::testing::read;
using rotunda::testing::write;

constexpr double kNothing = -std::numeric_limits<double>::infinity();

/// One sequence of a graph: its tensors as views of its own rows.
class SimulatedSequence {
 public:
  SimulatedSequence(const GraphCall& call, std::int64_t index) : call_(call), index_(index) {
    rows_ = length(call.lengths_q, Operand::q);
    keys_ = length(call.lengths_k, Operand::k);
  }

  [[nodiscard]] bool sees(std::int64_t i, std::int64_t j) const {
    const CornerMask& mask = call_.key.mask;
    const std::int64_t distance = j - i - (mask.align == Align::top_left ? 0 : keys_ - rows_);
    return (mask.left == kInfinity || distance >= -mask.left) && (mask.right == kInfinity || distance <= mask.right);
  }

  void forward() const {
    const TensorView q = view(Operand::q, rows_), k = view(Operand::k, keys_), v = view(Operand::v, keys_);
    const TensorView out = view(Operand::out, rows_), lse = view(Operand::lse, rows_);
    for_each_element(lse, [&](auto, auto i, auto head, auto) {
      const std::int64_t kv = head / (q.heads() / k.heads());
      double sum = 0;
      std::vector<double> weights(static_cast<std::size_t>(keys_), 0.0), result(static_cast<std::size_t>(v.dim()), 0.0);
      for (std::int64_t j = 0; j < keys_; ++j) {
        if (!sees(i, j)) continue;
        const double weight = std::exp(score(q, k, i, j, head, kv));
        sum += weight;
        for (std::int64_t x = 0; x < v.dim(); ++x) result[static_cast<std::size_t>(x)] += weight * read(v, 0, j, kv, x);
      }
      for (std::int64_t x = 0; x < v.dim(); ++x) {
        write(out, 0, i, head, x, sum == 0 ? 0 : result[static_cast<std::size_t>(x)] / sum);
      }
      write(lse, 0, i, head, 0, sum == 0 ? kNothing : std::log(sum));
    });
  }

  void backward() const {
    const TensorView q = view(Operand::q, rows_), k = view(Operand::k, keys_), v = view(Operand::v, keys_);
    const TensorView out = view(Operand::out, rows_), dout = view(Operand::dout, rows_);
    const TensorView lse = view(Operand::lse, rows_);
    std::vector<double> dq = zeros(q), dk = zeros(k), dv = zeros(v);
    const auto at = [](const TensorView& t, std::int64_t row, std::int64_t head, std::int64_t x) {
      return static_cast<std::size_t>((row * t.heads() + head) * t.dim() + x);
    };
    for_each_element(lse, [&](auto, auto i, auto head, auto) {
      const std::int64_t kv = head / (q.heads() / k.heads());
      const double delta = dot(out, dout, i, i, head, head);
      for (std::int64_t j = 0; j < keys_; ++j) {
        if (!sees(i, j)) continue;
        const double p = std::exp(score(q, k, i, j, head, kv) - read(lse, 0, i, head, 0));
        const double ds = p * (dot(dout, v, i, j, head, kv) - delta) * call_.key.scale;
        for (std::int64_t x = 0; x < v.dim(); ++x) dv[at(v, j, kv, x)] += p * read(dout, 0, i, head, x);
        for (std::int64_t x = 0; x < q.dim(); ++x) {
          dk[at(k, j, kv, x)] += ds * read(q, 0, i, head, x);
          dq[at(q, i, head, x)] += ds * read(k, 0, j, kv, x);
        }
      }
    });
    const auto store = [&](Operand operand, const std::vector<double>& values, std::int64_t rows) {
      const TensorView to = view(operand, rows);
      for_each_element(
          to, [&](auto, auto row, auto head, auto x) { write(to, 0, row, head, x, values[at(to, row, head, x)]); });
    };
    store(Operand::dq, dq, rows_);
    store(Operand::dk, dk, keys_);
    store(Operand::dv, dv, keys_);
  }

 private:
  [[nodiscard]] std::int64_t length(const std::vector<int>& lengths, Operand operand) const {
    return lengths.empty() ? call_.key[operand].dim[2] : lengths[static_cast<std::size_t>(index_)];
  }

  [[nodiscard]] TensorView view(Operand operand, std::int64_t rows) const {
    const TensorKey& key = call_.key[operand];
    const std::int64_t begin =
        key.offsets < 0 ? index_ * key.stride[0]
                        : call_.offsets[static_cast<std::size_t>(key.offsets)][static_cast<std::size_t>(index_)];
    TensorView result;
    result.dtype = operand == Operand::lse ? DType::fp32 : call_.key.dtype;
    result.data = static_cast<std::byte*>(call_.bindings.tensors[static_cast<std::size_t>(operand)]) +
                  begin * static_cast<std::int64_t>(size_of(result.dtype));
    result.shape = {1, rows, key.dim[1], key.dim[3]};
    result.stride = {0, key.stride[2], key.stride[1], 1};
    return result;
  }

  static std::vector<double> zeros(const TensorView& like) {
    return std::vector<double>(static_cast<std::size_t>(like.elements()), 0.0);
  }

  static double dot(const TensorView& a, const TensorView& b, std::int64_t i, std::int64_t j, std::int64_t a_head,
                    std::int64_t b_head) {
    double sum = 0;
    for (std::int64_t x = 0; x < a.dim(); ++x) sum += read(a, 0, i, a_head, x) * read(b, 0, j, b_head, x);
    return sum;
  }
  [[nodiscard]] double score(const TensorView& q, const TensorView& k, std::int64_t i, std::int64_t j,
                             std::int64_t head, std::int64_t kv) const {
    return call_.key.scale * dot(q, k, i, j, head, kv);
  }

  const GraphCall& call_;
  std::int64_t index_, rows_ = 0, keys_ = 0;
};

/// Performs operations on host memory.
class HostOperations final : public Operations {
 public:
  explicit HostOperations(std::span<std::byte> memory) : Operations(Scratch(memory)) {}

  void fill(const TensorView& to, float value) override { rotunda::testing::fill(to, static_cast<double>(value)); }
  void convert(const TensorView& from, const TensorView& to) override {
    ASSERT_EQ(from.shape, to.shape);
    for_each_element(to, [&](auto b, auto i, auto h, auto x) { write(to, b, i, h, x, read(from, b, i, h, x)); });
  }
  void copy(const TensorView& from, const TensorView& to) override { convert(from, to); }
  void add(const TensorView& from, const TensorView& to) override {
    ASSERT_EQ(from.shape, to.shape);
    for_each_element(to, [&](auto b, auto i, auto h, auto x) {
      write(to, b, i, h, x, read(to, b, i, h, x) + read(from, b, i, h, x));
    });
  }
  void zero(const TensorView& scratch_view) override { fill(scratch_view, 0); }
  void clear_infinities(const TensorView& view) override {
    for_each_element(view, [&](auto b, auto i, auto h, auto x) {
      if (std::isinf(read(view, b, i, h, x))) write(view, b, i, h, x, 0);
    });
  }

  void merge(const TensorView& partial_out, const TensorView& partial_lse, const RowState& state, const TensorView& out,
             bool init, bool last) override {
    ASSERT_EQ(partial_lse.shape, state.lse.shape);
    for_each_element(partial_lse, [&](auto b, auto i, auto h, auto) {
      const double a = init ? kNothing : read(state.lse, b, i, h, 0), p = read(partial_lse, b, i, h, 0);
      const double sum = a == kNothing && p == kNothing ? kNothing : std::log(std::exp(a) + std::exp(p));
      for (std::int64_t x = 0; x < partial_out.dim(); ++x) {
        double value = 0;
        if (a != kNothing) value += std::exp(a - sum) * read(state.acc, b, i, h, x);
        if (p != kNothing) value += std::exp(p - sum) * read(partial_out, b, i, h, x);
        write(last ? out : state.acc, b, i, h, x, value);
      }
      write(state.lse, b, i, h, 0, sum);
    });
  }

  void attend(const GraphCall& call) override {
    const Scratch::Frame frame(scratch);
    (void)scratch.take(call.array_bytes());
    EXPECT_LE(static_cast<std::int64_t>((call.lengths_q.size() + call.lengths_k.size()) * sizeof(int)),
              call.array_bytes());
    EXPECT_EQ(call.key.lengths, !call.lengths_q.empty());
    for (std::int64_t n = 0; n < call.key[Operand::q].dim[0]; ++n) {
      const SimulatedSequence sequence(call, n);
      call.key.backward ? sequence.backward() : sequence.forward();
    }
  }
};

/// As the cudnn kernel, on the host; its workspace is its own and exactly what the rehearsal counts.
class SimulatedKernel final : public Kernel {
 public:
  explicit SimulatedKernel(const Problem& problem) : problem_(problem) {}

  [[nodiscard]] std::string name() const override { return "simulated"; }
  [[nodiscard]] KernelCapabilities capabilities() const override { return {}; }
  [[nodiscard]] std::string description() const override { return "tests"; }
  [[nodiscard]] std::optional<std::string> refuse(const Problem&, const Device&) const override { return {}; }
  [[nodiscard]] std::int64_t workspace_bytes(const Problem&, const CallShape&) const override { return 0; }

  void forward(const ForwardArgs& args, const KernelContext&) const override {
    const CallShape shape = {.slices = args.slices, .init = args.init, .last = args.last};
    perform(args, shape, [&](const auto& calls, Operations& operations) {
      ForwardArgs with_out = args;
      cudnn::forward(with_out, calls, 0, operations);
    });
  }
  void backward(const BackwardArgs& args, const KernelContext&) const override {
    const CallShape shape = {.backward = true,
                             .slices = args.slices,
                             .init_dq = args.init_dq,
                             .init_dkv = args.init_dkv,
                             .narrow_dq = narrow && args.init_dq,
                             .narrow_dkv = narrow && args.init_dkv};
    perform(args, shape, [&](const auto& calls, Operations& operations) {
      BackwardArgs with_out = args;
      with_out.out = out;
      with_out.delta = {};
      if (!narrow) {
        cudnn::backward(with_out, calls, 0, operations);
        return;
      }
      // Where a call makes a whole gradient it may be asked for in 16 bits.
      std::vector<std::vector<std::byte>> memory;
      const auto narrowed = [&](TensorView& view, bool init) {
        if (!init) return;
        memory.emplace_back(static_cast<std::size_t>(view.elements() * 2), std::byte{0xff});
        view = make_view(memory.back().data(), args.q.dtype, Layout::bhsd, view.batch(), view.rows(), view.heads(),
                         view.dim());
      };
      narrowed(with_out.dq, args.init_dq);
      narrowed(with_out.dk, args.init_dkv);
      narrowed(with_out.dv, args.init_dkv);
      cudnn::backward(with_out, calls, 0, operations);
      if (args.init_dq) operations.convert(with_out.dq, args.dq);
      if (args.init_dkv) operations.convert(with_out.dk, args.dk);
      if (args.init_dkv) operations.convert(with_out.dv, args.dv);
    });
  }

  TensorView out;       ///< for backward
  bool narrow = false;  ///< gradients of 16 bits where they may be

 private:
  /// Counts scratch only.
  class Counting final : public Operations {
   public:
    Counting() : Operations(Scratch{}) {}
    void fill(const TensorView&, float) override {}
    void convert(const TensorView&, const TensorView&) override {}
    void copy(const TensorView&, const TensorView&) override {}
    void add(const TensorView&, const TensorView&) override {}
    void zero(const TensorView&) override {}
    void clear_infinities(const TensorView&) override {}
    void merge(const TensorView&, const TensorView&, const RowState&, const TensorView&, bool, bool) override {}
    void attend(const GraphCall& call) override {
      const Scratch::Frame frame(scratch);
      (void)scratch.take(call.array_bytes());
    }
  };

  void perform(const auto& args, CallShape shape, auto&& body) const {
    const Grouping grouping = group_slices(args.slices, 1000);
    shape.batch = args.q.batch();
    shape.rows_q = args.q.rows();
    shape.rows_k = args.k.rows();
    shape.heads_q = static_cast<int>(args.q.heads());
    shape.heads_kv = static_cast<int>(args.k.heads());
    Counting counting;
    for (const Strides strides : {Strides::packed, Strides::spread}) {
      rehearse(problem_, shape, args.heads, grouping.calls, counting, strides);
    }
    const auto bytes = static_cast<std::size_t>(counting.scratch.bytes_needed());
    std::vector<std::byte> memory(std::max<std::size_t>(bytes, 1), std::byte{0xff});
    HostOperations operations({memory.data(), bytes == 0 ? 1 : bytes});
    body(grouping.calls, operations);
  }

  const Problem& problem_;
};

/// Runs a problem in so many calls of keys and holds it against float64.
void check(Problem problem, int pieces, std::uint64_t seed, bool narrow = false) {
  problem.max_logit = false;
  problem.sink = Sink::none;
  normalize(problem);
  SCOPED_TRACE(::testing::Message() << pieces << " calls, seed " << seed << ": " << to_text(problem));
  SimulatedKernel kernel(problem);
  kernel.narrow = narrow;
  rotunda::testing::KernelDriver driver(kernel, problem, {.seed = seed});
  kernel.out = driver.tensors().out;
  if (pieces == 1) {
    driver.run();
  } else {
    driver.run(rotunda::testing::cut_keys(problem, mask_slices(problem), pieces));
  }
  rotunda::testing::expect_right(driver);
}

TEST(CudnnPasses, RandomProblems) {
  for (std::uint64_t seed = 1; seed <= 250; ++seed) {
    Problem problem = rotunda::testing::random_problem(seed, {.max_work = 1500, .max_head_dim = 12});
    problem.dtype = DType::fp32;  // nothing is lost in partial results: what differs is wrong
    check(problem, 1 + static_cast<int>(seed % 3), seed);
    if (::testing::Test::HasFailure()) return;
  }
}

TEST(CudnnPasses, GradientsOfTheProblemsDtype) {
  for (std::uint64_t seed = 1; seed <= 250; ++seed) {
    Problem problem = rotunda::testing::random_problem(seed, {.max_work = 1500, .max_head_dim = 12});
    problem.dtype = seed % 2 == 0 ? DType::bf16 : DType::fp16;
    problem.grad = true;
    check(problem, 1, seed, true);
    if (::testing::Test::HasFailure()) return;
  }
}

TEST(CudnnPasses, KnownProblems) {
  for (const char* text : {
           "dtype=fp32 b=2 s_q=40 h_q=4 h_kv=2 d=8 mask=causal grad=1",
           "dtype=fp32 b=3 s_q=40 h_q=2 d=8 mask=causal lens_q=40,11,0 lens_k=40,11,3 grad=1",
           "dtype=fp32 b=3 layout=bhsd s_q=40 h_q=2 d=8 mask=causal prefix=6 lens_q=40,11,7 lens_k=40,11,7 grad=1",
           "dtype=fp32 layout=thd cu_q=0,9,30,52 used_q=7,0,20 h_q=2 d=8 mask=causal window=5,0 grad=1",
           "dtype=fp32 layout=thd cu_q=0,9,30,52 cu_k=0,12,30,70 h_q=4 h_kv=1 d=8 d_v=4 mask=causal_bottom_right "
           "grad=1",
           "dtype=fp32 s_q=33 s_k=20 h_q=2 d=8 mask=none window=4,9 grad=1",
           "dtype=fp32 b=2 s_q=1 h_q=2 d=8 mask=causal grad=1",
           "dtype=fp32 b=2 layout=sbhd s_q=48 h_q=2 d=8 mask=causal chunk=13 grad=1",
       }) {
    for (const int pieces : {1, 2, 5}) check(parse_problem(text), pieces, 7);
  }
}

TEST(CudnnPasses, HeadsThatDontFitTheGroups) {
  EXPECT_EQ(head_runs({.group = 4}, 8), (std::vector<HeadRun>{{0, 8, 0, 2}}));
  EXPECT_EQ(head_runs({.group = 4, .q_first = 3}, 6), (std::vector<HeadRun>{{0, 1, 0, 1}, {1, 4, 1, 1}, {5, 1, 2, 1}}));
  EXPECT_EQ(head_runs({.group = 2, .q_first = 3, .kv_first = 1}, 2), (std::vector<HeadRun>{{0, 2, 0, 2}}));
  const Problem problem = parse_problem("dtype=fp32 s_q=40 h_q=12 h_kv=3 d=8 mask=causal grad=1");
  SimulatedKernel kernel(problem);
  rotunda::testing::KernelDriver all(kernel, problem, {.seed = 3}), some(kernel, problem, {.seed = 3});
  kernel.out = all.tensors().out;
  all.run();
  rotunda::testing::expect_right(all);
  some.restrict_heads(3, 6);
  kernel.out = some.tensors().out;
  some.run();
  EXPECT_LE(rotunda::testing::largest_difference(all.tensors().out.narrow_heads(3, 6), some.tensors().out), 1e-6);
  EXPECT_LE(rotunda::testing::largest_difference(all.tensors().dq.narrow_heads(3, 6), some.tensors().dq), 1e-6);
}

}  // namespace
}  // namespace rotunda::cudnn
