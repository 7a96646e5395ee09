// The cpu kernel against float64, written out pair by pair, and what only this kernel promises: the same bits whatever
// the threads and strides, and NaN that stays with those who see it.
#include "kernel/cpu/cpu_kernel.hpp"

#include <gtest/gtest.h>

#include "kernel/targets.hpp"
// After the choice of targets.
#include <hwy/highway.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "base/half.hpp"
#include "base/memory.hpp"

namespace rotunda {
namespace {

constexpr float kFloatNaN = std::numeric_limits<float>::quiet_NaN();
const float kFullNaN = std::bit_cast<float>(0xffffffffU);  // every payload bit set
constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

/// A dense tensor [batch, row, head, dim] of any dtype with its memory. `gap` elements of NaN follow each row.
class Tensor {
 public:
  Tensor(DType dtype, std::int64_t b, std::int64_t s, std::int64_t h, std::int64_t d, std::int64_t gap = 0)
      : memory_(b * s * (h * d + gap) * static_cast<std::int64_t>(size_of(dtype))) {
    view_ = {memory_.data(), dtype, {b, s, h, d}, {s * (h * d + gap), h * d + gap, d, 1}};
    std::fill_n(memory_.data(), memory_.bytes(), std::byte{0xff});  // NaN in every dtype
  }

  [[nodiscard]] const TensorView& view() const { return view_; }

  [[nodiscard]] double get(std::int64_t b, std::int64_t row, std::int64_t h, std::int64_t i) const {
    return dispatch_dtype(view_.dtype, [&](auto e) {
      return static_cast<double>(static_cast<float>(view_.at<decltype(e)>(b, row, h)[i]));
    });
  }
  void set(std::int64_t b, std::int64_t row, std::int64_t h, std::int64_t i, float value) {
    dispatch_dtype(view_.dtype, [&](auto e) {
      using T = decltype(e);
      view_.at<T>(b, row, h)[i] = T(value);
    });
  }

  template <class Body>
  void each(Body&& body) const {
    for (std::int64_t b = 0; b < view_.batch(); ++b) {
      for (std::int64_t row = 0; row < view_.rows(); ++row) {
        for (std::int64_t h = 0; h < view_.heads(); ++h) {
          for (std::int64_t i = 0; i < view_.dim(); ++i) body(b, row, h, i);
        }
      }
    }
  }

  void randomize(std::mt19937& rng, float spread) {
    std::normal_distribution<float> normal(0, spread);
    each([&](auto b, auto row, auto h, auto i) { set(b, row, h, i, normal(rng)); });
  }
  void fill(float value) {
    each([&](auto b, auto row, auto h, auto i) { set(b, row, h, i, value); });
  }
  void fill_row(std::int64_t row, float value) {
    each([&](auto b, auto at, auto h, auto i) {
      if (at == row) set(b, at, h, i, value);
    });
  }
  [[nodiscard]] std::vector<float> values() const {
    std::vector<float> all;
    each([&](auto b, auto row, auto h, auto i) { all.push_back(static_cast<float>(get(b, row, h, i))); });
    return all;
  }

 private:
  HostBuffer memory_;
  TensorView view_;
};

struct Shape {
  DType dtype = DType::fp32;
  std::int64_t b = 1, s_q = 1, s_k = 1;
  int h_q = 1, h_kv = 1, d = 16, d_v = 16;
  HeadMap heads;
  std::vector<Slice> slices;
  double scale = 0.3;
};

bool sees(const Slice& slice, std::int64_t b, std::int64_t row, std::int64_t key) {
  if (slice.batch != b || row < slice.q_begin || row >= slice.q_begin + slice.q_len) return false;
  if (key < slice.k_begin || key >= slice.k_begin + slice.k_len) return false;
  const std::int64_t distance = slice.k_pos + key - slice.k_begin - slice.q_pos - row + slice.q_begin;
  return (slice.left == kInfinity || distance >= -slice.left) && (slice.right == kInfinity || distance <= slice.right);
}

bool sees(const std::vector<Slice>& slices, std::int64_t b, std::int64_t row, std::int64_t key) {
  for (const Slice& slice : slices) {
    if (sees(slice, b, row, key)) return true;
  }
  return false;
}

/// Inputs, and what the kernel made of them. Everything that it should write starts as NaN.
struct Case {
  Shape shape;
  Tensor q, k, v, dout, acc, out, lse, delta, dq, dk, dv;
  std::vector<float> max_logit;

  explicit Case(const Shape& s, unsigned seed = 1, std::int64_t gap = 0)
      : shape(s),
        q(s.dtype, s.b, s.s_q, s.h_q, s.d, gap),
        k(s.dtype, s.b, s.s_k, s.h_kv, s.d, gap),
        v(s.dtype, s.b, s.s_k, s.h_kv, s.d_v, gap),
        dout(s.dtype, s.b, s.s_q, s.h_q, s.d_v, gap),
        acc(DType::fp32, s.b, s.s_q, s.h_q, s.d_v, gap),
        out(s.dtype, s.b, s.s_q, s.h_q, s.d_v, gap),
        lse(DType::fp32, s.b, s.s_q, s.h_q, 1),
        delta(DType::fp32, s.b, s.s_q, s.h_q, 1),
        dq(DType::fp32, s.b, s.s_q, s.h_q, s.d, gap),
        dk(DType::fp32, s.b, s.s_k, s.h_kv, s.d, gap),
        dv(DType::fp32, s.b, s.s_k, s.h_kv, s.d_v, gap),
        max_logit(static_cast<std::size_t>(s.h_q), kMinusInfinity) {
    std::mt19937 rng(seed);
    for (Tensor* t : {&q, &k, &v, &dout}) t->randomize(rng, 1);
  }

  [[nodiscard]] HostBuffer workspace(int threads, bool backward) const {
    Problem problem;
    problem.dtype = shape.dtype;
    problem.d = shape.d;
    problem.d_v = shape.d_v;
    problem.scale = shape.scale;
    return HostBuffer(cpu_kernel().workspace_bytes(problem, whole_call(problem, {}, backward, threads)));
  }

  void forward(std::span<const Slice> slices, bool init, bool last, int threads = 1) {
    ThreadPool pool(threads);
    const HostBuffer scratch = workspace(threads, false);
    ForwardArgs args{slices,     q.view(),         k.view(),    v.view(),    acc.view(), lse.view(),
                     out.view(), max_logit.data(), shape.heads, shape.scale, init,       last};
    cpu_kernel().forward(args, {pool, {scratch.data(), static_cast<std::size_t>(scratch.bytes())}});
  }

  /// delta from acc, as the executor would.
  void backward(std::span<const Slice> slices, bool init, int threads = 1) {
    lse.each([&](auto b, auto row, auto h, auto) {
      double sum = 0;
      for (int i = 0; i < shape.d_v; ++i) sum += dout.get(b, row, h, i) * acc.get(b, row, h, i);
      delta.set(b, row, h, 0, static_cast<float>(sum));
    });
    ThreadPool pool(threads);
    const HostBuffer scratch = workspace(threads, true);
    BackwardArgs args{slices,    q.view(),  k.view(),  v.view(),    dout.view(), lse.view(), delta.view(),
                      dq.view(), dk.view(), dv.view(), shape.heads, shape.scale, init,       init};
    cpu_kernel().backward(args, {pool, {scratch.data(), static_cast<std::size_t>(scratch.bytes())}});
  }

  void run(int threads = 1) {
    forward(shape.slices, true, false, threads);
    backward(shape.slices, true, threads);
  }
};

/// The exact answers, in the order of Tensor::values().
struct Exact {
  std::vector<double> out, lse, max_logit, dq, dk, dv;
};

Exact exact(const Case& c) {
  const Shape& s = c.shape;
  Exact e;
  e.dq.assign(static_cast<std::size_t>(s.b * s.s_q * s.h_q * s.d), 0);
  e.dk.assign(static_cast<std::size_t>(s.b * s.s_k * s.h_kv * s.d), 0);
  e.dv.assign(static_cast<std::size_t>(s.b * s.s_k * s.h_kv * s.d_v), 0);
  e.max_logit.assign(static_cast<std::size_t>(s.h_q), kMinusInfinity);
  c.lse.each([&](auto b, auto row, auto h, auto) {
    const int kv = s.heads.kv(static_cast<int>(h));
    std::vector<std::int64_t> keys;
    std::vector<double> p;
    double most = kMinusInfinity, sum = 0;
    for (std::int64_t key = 0; key < s.s_k; ++key) {
      if (!sees(s.slices, b, row, key)) continue;
      double score = 0;
      for (int i = 0; i < s.d; ++i) score += c.q.get(b, row, h, i) * c.k.get(b, key, kv, i);
      keys.push_back(key);
      p.push_back(score * s.scale);
      most = std::max(most, p.back());
    }
    for (double& x : p) sum += x = std::exp(x - most);
    double& logit = e.max_logit[static_cast<std::size_t>(h)];
    logit = std::max(logit, most);
    e.lse.push_back(keys.empty() ? kMinusInfinity : most + std::log(sum));
    std::vector<double> out(static_cast<std::size_t>(s.d_v));
    double delta = 0;
    for (int i = 0; i < s.d_v; ++i) {
      double& o = out[static_cast<std::size_t>(i)];
      for (std::size_t n = 0; n < keys.size(); ++n) o += p[n] / sum * c.v.get(b, keys[n], kv, i);
      delta += o * c.dout.get(b, row, h, i);
      e.out.push_back(o);
    }
    for (std::size_t n = 0; n < keys.size(); ++n) {
      double dp = 0;
      const auto kv_row = static_cast<std::size_t>((b * s.s_k + keys[n]) * s.h_kv + kv);
      for (int i = 0; i < s.d_v; ++i) {
        dp += c.dout.get(b, row, h, i) * c.v.get(b, keys[n], kv, i);
        e.dv[kv_row * static_cast<std::size_t>(s.d_v) + static_cast<std::size_t>(i)] +=
            p[n] / sum * c.dout.get(b, row, h, i);
      }
      const double ds = p[n] / sum * (dp - delta) * s.scale;
      for (int i = 0; i < s.d; ++i) {
        e.dq[static_cast<std::size_t>((b * s.s_q + row) * s.h_q + h) * static_cast<std::size_t>(s.d) +
             static_cast<std::size_t>(i)] += ds * c.k.get(b, keys[n], kv, i);
        e.dk[kv_row * static_cast<std::size_t>(s.d) + static_cast<std::size_t>(i)] += ds * c.q.get(b, row, h, i);
      }
    }
  });
  return e;
}

/// fp32 inside: a few roundings of the largest value, whatever the input dtype.
void expect_close(const std::vector<float>& got, const std::vector<double>& want, const char* name) {
  ASSERT_EQ(got.size(), want.size()) << name;
  double largest = 1;
  for (const double x : want) largest = std::isfinite(x) ? std::max(largest, std::fabs(x)) : largest;
  for (std::size_t i = 0; i < got.size(); ++i) {
    if (std::isinf(want[i])) {
      ASSERT_EQ(static_cast<double>(got[i]), want[i]) << name << " at " << i;
    } else {
      ASSERT_NEAR(static_cast<double>(got[i]), want[i], 3e-6 * largest) << name << " at " << i;
    }
  }
}

void expect_exact(const Case& c) {
  const Exact e = exact(c);
  expect_close(c.acc.values(), e.out, "acc");
  expect_close(c.lse.values(), e.lse, "lse");
  expect_close(c.max_logit, e.max_logit, "max_logit");
  expect_close(c.dq.values(), e.dq, "dq");
  expect_close(c.dk.values(), e.dk, "dk");
  expect_close(c.dv.values(), e.dv, "dv");
}

void expect_same_bits(const Tensor& a, const Tensor& b, const char* name) {
  const auto x = a.values(), y = b.values();
  const auto same = [](float p, float q) { return std::bit_cast<std::uint32_t>(p) == std::bit_cast<std::uint32_t>(q); };
  EXPECT_TRUE(std::equal(x.begin(), x.end(), y.begin(), y.end(), same)) << name;
}

void expect_same_bits(const Case& a, const Case& b) {
  expect_same_bits(a.acc, b.acc, "acc");
  expect_same_bits(a.lse, b.lse, "lse");
  expect_same_bits(a.dq, b.dq, "dq");
  expect_same_bits(a.dk, b.dk, "dk");
  expect_same_bits(a.dv, b.dv, "dv");
}

Shape shape_of(std::int64_t s_q, std::int64_t s_k, int d, int d_v, std::int64_t left, std::int64_t right) {
  Shape s;
  s.s_q = s_q;
  s.s_k = s_k;
  s.d = d;
  s.d_v = d_v;
  s.scale = 1 / std::sqrt(d);
  s.slices = {{0, 0, s_q, 0, s_k, 0, 0, left, right}};
  return s;
}

TEST(CpuKernel, BandsOfEveryKind) {
  for (const auto& [left, right] : std::vector<std::pair<std::int64_t, std::int64_t>>{{kInfinity, kInfinity},
                                                                                      {kInfinity, 0},
                                                                                      {7, 0},
                                                                                      {0, 0},
                                                                                      {3, 5},
                                                                                      {-4, 20},
                                                                                      {50, -40},
                                                                                      {kInfinity, -200},
                                                                                      {5, -10},
                                                                                      {kInfinity - 1, kInfinity - 1}}) {
    SCOPED_TRACE(testing::Message() << left << ", " << right);
    Case c(shape_of(131, 217, 24, 40, left, right));
    c.run();
    expect_exact(c);
  }
}

TEST(CpuKernel, HeadDims) {
  for (const auto& [d, d_v] : std::vector<std::pair<int, int>>{
           {1, 1}, {1, 9}, {7, 3}, {16, 33}, {64, 64}, {80, 96}, {192, 128}, {128, 192}, {257, 5}, {512, 511}}) {
    SCOPED_TRACE(testing::Message() << d << ", " << d_v);
    Case c(shape_of(70, 101, d, d_v, kInfinity, 31));
    c.run(2);
    expect_exact(c);
  }
}

TEST(CpuKernel, ScoresOfFloatsKeepWhatCancels) {
  // q·k = 10000 x - 10000 x + …: a sum in fp32 would be off by 3e-4, a hundred times what expect_exact allows.
  Case c(shape_of(70, 101, 16, 16, kInfinity, 31));
  c.q.each([&](auto b, auto row, auto h, auto i) {
    if (i < 2) c.q.set(b, row, h, i, 10000);
  });
  c.k.each([&](auto b, auto row, auto h, auto i) {
    if (i == 1) c.k.set(b, row, h, 1, -static_cast<float>(c.k.get(b, row, h, 0)));
  });
  c.run();
  expect_exact(c);
}

TEST(CpuKernel, SmallAndEmptySizes) {
  for (const std::int64_t s_q : {0, 1, 2, 15, 16, 17}) {
    for (const std::int64_t s_k : {0, 1, 5, 6, 7, 8, 9}) {
      SCOPED_TRACE(testing::Message() << s_q << ", " << s_k);
      Case c(shape_of(s_q, s_k, 8, 8, kInfinity, 0));
      c.run(3);
      expect_exact(c);
      c.shape.slices.clear();
      c.max_logit.assign(c.max_logit.size(), kMinusInfinity);
      c.run();
      expect_exact(c);
    }
  }
}

TEST(CpuKernel, SixteenBitInputs) {
  for (const DType dtype : {DType::bf16, DType::fp16}) {
    Shape s = shape_of(100, 100, 37, 48, kInfinity, 0);
    s.dtype = dtype;
    Case c(s);
    c.run();
    expect_exact(c);
    c.forward(s.slices, true, true);
    c.out.each([&](auto b, auto row, auto h, auto i) {
      const auto value = static_cast<float>(c.acc.get(b, row, h, i));
      const float want = dtype == DType::bf16 ? static_cast<float>(bf16_t(value)) : static_cast<float>(fp16_t(value));
      ASSERT_EQ(c.out.get(b, row, h, i), static_cast<double>(want));
    });
  }
}

TEST(CpuKernel, GroupedHeadsWithOffsets) {
  for (const int group : {1, 2, 3, 4, 7}) {
    SCOPED_TRACE(group);
    Shape s = shape_of(90, 150, 16, 24, 40, 60);
    s.b = 2;
    s.slices = {{1, 3, 80, 10, 120, 5, 0, 40, 60}, {0, 0, 90, 0, 150, 0, 0, kInfinity, 0}};
    s.h_q = 9;  // global heads group-1 … group+7 of a wider model
    s.heads = {group, 2 * group - 1, 1};
    s.h_kv = s.heads.kv(8) + 2;  // the last one has no query head here
    Case c(s);
    c.run(2);
    expect_exact(c);
  }
}

/// Packed documents, a tile that meets several slices, and rows that two slices share.
std::vector<Slice> many_slices() {
  return {{0, 0, 50, 0, 50, 0, 0, kInfinity, 0},
          {0, 50, 30, 50, 30, 0, 0, kInfinity, 0},
          {0, 90, 110, 90, 60, 0, 0, 20, 10},
          {0, 120, 60, 170, 83, 0, 0, kInfinity, kInfinity},
          {0, 199, 1, 2, 1, 0, 0, kInfinity, kInfinity}};
}

TEST(CpuKernel, SeveralSlicesAndRowsOfNone) {
  Shape s = shape_of(210, 260, 20, 20, 0, 0);
  s.slices = many_slices();
  Case c(s);
  for (const std::int64_t row : {80, 89, 200, 209}) {
    c.q.fill_row(row, kFloatNaN);
    c.dout.fill_row(row, kFloatNaN);
  }
  for (const std::int64_t key : {80, 89, 150, 169, 253, 259}) {
    c.k.fill_row(key, kFloatNaN);
    c.v.fill_row(key, kFloatNaN);
  }
  c.forward(s.slices, true, false);
  c.dout.fill_row(80, 0);  // for delta, which is the caller's
  for (const std::int64_t row : {80, 89, 200, 209}) c.dout.fill_row(row, 0);
  c.backward(s.slices, true);
  expect_exact(c);
}

TEST(CpuKernel, CallsAddUp) {
  Shape s = shape_of(210, 260, 20, 20, 0, 0);
  s.slices = many_slices();
  Case c(s);
  bool first = true;
  for (const Slice& slice : s.slices) {
    c.forward({&slice, 1}, first, false);
    first = false;
  }
  first = true;
  for (const Slice& slice : s.slices) {
    c.backward({&slice, 1}, first);
    first = false;
  }
  expect_exact(c);
  c.forward({}, false, true);
  expect_same_bits(c.out, c.acc, "out");
}

TEST(CpuKernel, NegativeScale) {
  Shape s = shape_of(50, 70, 16, 16, kInfinity, 3);
  s.scale = -0.4;
  Case c(s);
  c.forward(s.slices, true, false);
  c.backward(s.slices, true);
  Exact e = exact(c);
  expect_close(c.acc.values(), e.out, "acc");
  expect_close(c.lse.values(), e.lse, "lse");
  expect_close(c.dq.values(), e.dq, "dq");
}

TEST(CpuKernel, SameBitsForAnyThreadsAndStrides) {
  Shape s = shape_of(400, 500, 40, 24, 300, 10);
  s.b = 2;
  s.h_q = 4;
  s.h_kv = 2;
  s.heads.group = 2;
  s.slices = {{0, 0, 400, 0, 500, 0, 0, 300, 10}, {1, 0, 400, 0, 500, 0, 0, kInfinity, kInfinity}};
  Case one(s);
  one.run(1);
  for (const int threads : {2, 3, 5}) {
    Case many(s, 1, 0);
    many.run(threads);
    expect_same_bits(one, many);
  }
  Case strided(s, 1, 13);
  strided.run(2);
  expect_same_bits(one, strided);
}

/// What changes when one row of one input is NaN must be what sees it, to the bit.
class CpuKernelNaN : public testing::Test {
 protected:
  static Shape shape() {
    Shape s = shape_of(210, 260, 20, 20, 0, 0);
    s.slices = many_slices();
    s.slices.push_back({0, 0, 50, 253, 7, 0, 0, kInfinity, 2});
    return s;
  }
  /// Rows where two tensors differ, or are not finite in the second.
  static std::vector<bool> touched(const Tensor& before, const Tensor& after) {
    std::vector<bool> rows(static_cast<std::size_t>(before.view().rows()));
    before.each([&](auto b, auto row, auto h, auto i) {
      const double x = before.get(b, row, h, i), y = after.get(b, row, h, i);
      if (std::isnan(y) || x != y) rows[static_cast<std::size_t>(row)] = true;
    });
    return rows;
  }
};

TEST_F(CpuKernelNaN, InAKeyRowReachesRowsThatSeeIt) {
  const Shape s = shape();
  Case clean(s);
  clean.run();
  for (const float poison : {kFloatNaN, kFullNaN, std::numeric_limits<float>::infinity()}) {
    for (const std::int64_t key : {0, 20, 49, 60, 140, 180, 255}) {
      for (const bool in_v : {false, true}) {
        SCOPED_TRACE(testing::Message() << "key " << key << (in_v ? " of v" : " of k"));
        Case c(s);
        (in_v ? c.v : c.k).fill_row(key, poison);
        c.run();
        const auto rows = touched(clean.acc, c.acc), grads = touched(clean.dq, c.dq);
        for (std::int64_t row = 0; row < s.s_q; ++row) {
          const bool seen = sees(s.slices, 0, row, key);
          ASSERT_EQ(rows[static_cast<std::size_t>(row)], seen) << "acc " << row;
          ASSERT_EQ(grads[static_cast<std::size_t>(row)], seen) << "dq " << row;
        }
      }
    }
  }
}

TEST_F(CpuKernelNaN, InAQueryRowReachesKeysThatItSees) {
  const Shape s = shape();
  Case clean(s);
  clean.run();
  for (const std::int64_t row : {0, 30, 49, 70, 125, 160, 199}) {
    for (const bool in_dout : {false, true}) {
      SCOPED_TRACE(testing::Message() << "row " << row << (in_dout ? " of dout" : " of q"));
      Case c(s);
      (in_dout ? c.dout : c.q).fill_row(row, kFloatNaN);
      c.run();
      const auto rows = touched(clean.dq, c.dq), keys = touched(clean.dk, c.dk), values = touched(clean.dv, c.dv);
      for (std::int64_t other = 0; other < s.s_q; ++other) {
        ASSERT_EQ(rows[static_cast<std::size_t>(other)], other == row) << "dq " << other;
      }
      for (std::int64_t key = 0; key < s.s_k; ++key) {
        ASSERT_EQ(keys[static_cast<std::size_t>(key)], sees(s.slices, 0, row, key)) << "dk " << key;
        ASSERT_EQ(values[static_cast<std::size_t>(key)], sees(s.slices, 0, row, key)) << "dv " << key;
      }
    }
  }
}

TEST(CpuKernel, ScoresThatOverflowStayFinite) {
  Shape s = shape_of(20, 30, 8, 8, kInfinity, kInfinity);
  Case c(s);
  c.q.fill_row(3, 1e25F);
  c.k.fill_row(7, 1e25F);
  c.run();
  for (const float x : c.acc.values()) ASSERT_TRUE(std::isfinite(x));
  for (int i = 0; i < 8; ++i) EXPECT_NEAR(c.acc.get(0, 3, 0, i), c.v.get(0, 7, 0, i), 1e-6);
  for (const float x : c.lse.values()) ASSERT_TRUE(std::isfinite(x));
  for (const float x : c.dv.values()) ASSERT_TRUE(std::isfinite(x));
}

/// Every instruction set of this build that this processor has.
TEST(CpuKernel, EveryInstructionSet) {
  const std::int64_t supported = hwy::SupportedTargets();
  std::vector<std::string> names;
  for (std::int64_t rest = supported & HWY_TARGETS; rest != 0; rest &= rest - 1) {
    hwy::SetSupportedTargetsForTest(rest & -rest);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
    SCOPED_TRACE(cpu_kernel().description());
    names.push_back(cpu_kernel().description());
    for (const DType dtype : {DType::bf16, DType::fp16, DType::fp32}) {
      Shape s = shape_of(210, 260, 21, 35, 0, 0);
      s.dtype = dtype;
      s.slices = many_slices();
      Case c(s);
      c.run(2);
      expect_exact(c);
    }
    Case c(shape_of(20, 20, 8, 8, kInfinity, 0));
    c.v.fill_row(10, kFullNaN);
    c.run();
    EXPECT_TRUE(std::isfinite(c.acc.get(0, 9, 0, 0)));
    EXPECT_TRUE(std::isnan(c.acc.get(0, 10, 0, 0)));
  }
  hwy::SetSupportedTargetsForTest(0);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  EXPECT_EQ(std::set<std::string>(names.begin(), names.end()).size(), names.size());
}

TEST(CpuKernel, RefusesLongHeads) {
  Problem problem;
  problem.d = 513;
  problem.d_v = 64;
  EXPECT_TRUE(cpu_kernel().refuse(problem, {}).has_value());
  problem.d = 512;
  EXPECT_FALSE(cpu_kernel().refuse(problem, {}).has_value());
}

}  // namespace
}  // namespace rotunda
