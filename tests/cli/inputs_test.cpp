#include "cli/inputs.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <cstring>

#include "support/error_test.hpp"

namespace rotunda::cli {
namespace {

/// Writes a file of zeros with the given tensors: "name DTYPE d0 d1 …".
class InputsFromFile : public testing::Test {
 protected:
  struct Spec {
    std::string name, dtype;
    std::vector<std::int64_t> shape;
  };

  void write(const std::vector<Spec>& specs, const std::string& problem = "") {
    std::vector<TensorToWrite> tensors;
    for (const Spec& spec : specs) {
      std::int64_t bytes = bits_of_code(spec.dtype) / 8;
      for (const std::int64_t extent : spec.shape) bytes *= extent;
      tensors.push_back({spec.name, spec.dtype, spec.shape, std::span(zeros_).first(static_cast<std::size_t>(bytes))});
    }
    write_safetensors(path_, tensors, problem.empty() ? Metadata{} : Metadata{{"problem", problem}});
  }
  Inputs read(const std::string& problem) { return read_inputs(path_, parse_problem(problem)); }
  void TearDown() override { std::remove(path_.c_str()); }

  using Metadata = std::map<std::string, std::string>;
  std::string path_ = testing::TempDir() + "inputs_test_" + std::to_string(::getpid()) + ".safetensors";
  std::vector<std::byte> zeros_ = std::vector<std::byte>(1 << 16);
};

TEST_F(InputsFromFile, EveryLayoutHasItsShape) {
  const struct {
    const char* layout;
    std::vector<std::int64_t> q, v;
  } cases[] = {
      {"bshd", {2, 3, 4, 8}, {2, 3, 2, 6}}, {"sbhd", {3, 2, 4, 8}, {3, 2, 2, 6}}, {"bhsd", {2, 4, 3, 8}, {2, 2, 3, 6}}};
  for (const auto& c : cases) {
    auto k = c.v;
    k.back() = 8;
    write({{"q", "BF16", c.q}, {"k", "BF16", k}, {"v", "BF16", c.v}});
    const Inputs in = read(std::string("b=2 s_q=3 h_q=4 h_kv=2 d=8 d_v=6 layout=") + c.layout);
    EXPECT_EQ(in.tensors.views.q.shape, (std::array<std::int64_t, 4>{2, 3, 4, 8})) << c.layout;
    EXPECT_EQ(in.tensors.views.v.shape, (std::array<std::int64_t, 4>{2, 3, 2, 6})) << c.layout;
  }
}

TEST_F(InputsFromFile, MetadataHoldsTheProblemUnlessOneIsGiven) {
  write({{"q", "F32", {1, 3, 2, 8}}, {"k", "F32", {1, 3, 2, 8}}, {"v", "F32", {1, 3, 2, 8}}},
        "dtype=fp32 s_q=3 h_q=2 d=8 mask=causal");
  EXPECT_EQ(read_inputs(path_, std::nullopt).problem.mask, Mask::causal);
  EXPECT_EQ(read("dtype=fp32 s_q=3 h_q=2 d=8").problem.mask, Mask::none);
  write({{"q", "F32", {1, 3, 2, 8}}}, "s_q=three");
  EXPECT_ERROR((void)read_inputs(path_, std::nullopt), ErrorKind::bad_input, "metadata `problem`");
  write({{"q", "F32", {1, 3, 2, 8}}});
  EXPECT_ERROR((void)read_inputs(path_, std::nullopt), ErrorKind::bad_input, "no key `problem`");
}

TEST_F(InputsFromFile, WrongTensorsAreNamedWithBothSides) {
  const std::string problem = "s_q=3 h_q=2 d=8 grad=1 sink=learnable";
  const Spec q{"q", "BF16", {1, 3, 2, 8}}, k{"k", "BF16", {1, 3, 2, 8}}, v{"v", "BF16", {1, 3, 2, 8}},
      dout{"dout", "BF16", {1, 3, 2, 8}}, sink{"sink", "F32", {2}};
  const auto expect = [&](const std::vector<Spec>& specs, const char* message) {
    write(specs);
    EXPECT_ERROR((void)read(problem), ErrorKind::bad_input, message);
  };
  expect({k, v, dout, sink}, "tensor q is missing");
  expect({q, k, v, sink}, "tensor dout is missing (the problem has grad=1)");
  expect({q, k, v, dout}, "tensor sink is missing (the problem has sink=learnable)");
  expect({{"q", "F64", {1, 3, 2, 8}}, k, v, dout, sink}, "tensor q has dtype F64, the problem needs BF16 (bf16)");
  expect({{"q", "F16", {1, 3, 2, 8}}, k, v, dout, sink}, "tensor q has dtype F16");
  expect({q, k, v, dout, {"sink", "BF16", {2}}}, "tensor sink has dtype BF16, the problem needs F32");
  expect({q, k, v, dout, {"sink", "F32", {3}}}, "tensor sink has shape [3], the problem with layout bshd needs [2]");
  expect({{"q", "BF16", {1, 3, 8, 2}}, k, v, dout, sink},
         "tensor q has shape [1, 3, 8, 2], the problem with layout bshd needs [1, 3, 2, 8]");
  expect({q, k, {"v", "BF16", {3, 2, 8}}, dout, sink}, "tensor v has shape [3, 2, 8]");
  expect({q, {"k", "BF16", {1, 4, 2, 8}}, v, dout, sink}, "tensor k has shape [1, 4, 2, 8]");
  expect({q, k, v, {"dout", "BF16", {1, 3, 2, 7}}, sink}, "tensor dout has shape [1, 3, 2, 7]");
  write({q, k, v, dout, sink, {"extra", "I64", {5}}});
  EXPECT_EQ(read(problem).tensors.views.sink.heads(), 2) << "tensors that nobody asked for are ignored";
}

TEST_F(InputsFromFile, RowsBeyondTheLastOffsetArePadding) {
  const std::string problem = "layout=thd cu_q=0,3,5 used_q=2,2 h_q=2 d=8";
  write({{"q", "BF16", {9, 2, 8}}, {"k", "BF16", {9, 2, 8}}, {"v", "BF16", {9, 2, 8}}});
  const Inputs in = read(problem);
  EXPECT_EQ(in.problem.s_q, 9);
  EXPECT_EQ(in.problem.b, 3);
  EXPECT_EQ(in.problem.used_q, (std::vector<std::int64_t>{2, 2, 0}));
  EXPECT_EQ(mask_slices(in.problem), mask_slices(parse_problem(problem)));
  EXPECT_EQ(in.problem_text, to_text(parse_problem(problem))) << "as asked";
}

TEST_F(InputsFromFile, PackedBuffersThatAreShortOrDifferAreRefused) {
  const std::string problem = "layout=thd cu_q=0,3,5 h_q=2 d=8";
  write({{"q", "BF16", {4, 2, 8}}, {"k", "BF16", {4, 2, 8}}, {"v", "BF16", {4, 2, 8}}});
  EXPECT_ERROR((void)read(problem), ErrorKind::bad_input,
               "tensor q has shape [4, 2, 8], the problem with layout thd needs [5, 2, 8]");
  write({{"q", "BF16", {5, 2, 8}}, {"k", "BF16", {7, 2, 8}}, {"v", "BF16", {6, 2, 8}}});
  EXPECT_ERROR((void)read(problem), ErrorKind::bad_input,
               "tensor v has shape [6, 2, 8], the problem with layout thd needs [7, 2, 8]");
}

TEST_F(InputsFromFile, OneSideMayHaveATail) {
  write({{"q", "BF16", {5, 2, 8}}, {"k", "BF16", {7, 2, 8}}, {"v", "BF16", {7, 2, 8}}});
  const Inputs in = read("layout=thd cu_q=0,3,5 h_q=2 d=8");
  EXPECT_EQ(in.problem.s_q, 5);
  EXPECT_EQ(in.problem.s_k, 7);
  EXPECT_EQ(mask_slices(in.problem), mask_slices(parse_problem("layout=thd cu_q=0,3,5 h_q=2 d=8")));
}

TEST_F(InputsFromFile, SlicesTakeTheBuffersAsTheyAre) {
  const std::string problem =
      R"({"layout":"thd","cu_q":[0,4],"h_q":2,"d":8,"slices":[{"batch":0,"q_begin":0,"q_len":4,"k_begin":0,"k_len":4,)"
      R"("q_pos":0,"k_pos":0,"left":null,"right":0}]})";
  write({{"q", "BF16", {6, 2, 8}}, {"k", "BF16", {6, 2, 8}}, {"v", "BF16", {6, 2, 8}}});
  const Inputs in = read(problem);
  EXPECT_EQ(in.problem.s_q, 6);
  EXPECT_EQ(mask_slices(in.problem).size(), 1U);
}

TEST_F(InputsFromFile, NoTokensAtAllIsFine) {
  write({{"q", "BF16", {0, 2, 8}}, {"k", "BF16", {0, 2, 8}}, {"v", "BF16", {0, 2, 8}}});
  const Inputs in = read("layout=thd cu_q=0 h_q=2 d=8");
  EXPECT_TRUE(in.tensors.views.q.empty());
  EXPECT_NE(in.tensors.views.q.data, nullptr) << "empty, but there";
}

TEST(RandomInputs, FollowTheRecipeInEveryLayout) {
  // First values of q for seed 1, from the recipe: (sum of bytes - 1020) / 209.
  const Inputs a = random_inputs(parse_problem("dtype=fp32 b=2 s_q=3 h_q=2 d=4 grad=1"), 1);
  const Inputs b = random_inputs(parse_problem("dtype=fp32 b=2 s_q=3 h_q=2 d=4 layout=bhsd"), 1);
  double mean = 0;
  for (std::int64_t batch = 0; batch < 2; ++batch) {
    for (std::int64_t row = 0; row < 3; ++row) {
      for (std::int64_t head = 0; head < 2; ++head) {
        const float* x = a.tensors.views.q.at<float>(batch, row, head);
        const float* y = b.tensors.views.q.at<float>(batch, row, head);
        EXPECT_EQ(std::memcmp(x, y, 4 * sizeof(float)), 0);
        for (int i = 0; i < 4; ++i) {
          mean += x[i] / 48;
          EXPECT_NEAR(x[i] * 209, std::round(x[i] * 209), 1e-3);
        }
      }
    }
  }
  EXPECT_LT(std::abs(mean), 0.5);
  EXPECT_NE(*a.tensors.views.q.at<float>(0, 0, 0), *a.tensors.views.k.at<float>(0, 0, 0));
  EXPECT_NE(a.tensors.views.dout.data, nullptr);
}

TEST(RandomInputs, SixteenBitsAreRoundedToNearest) {
  const Inputs wide = random_inputs(parse_problem("dtype=fp32 s_q=64 h_q=2 d=8"), 3);
  for (const char* dtype : {"bf16", "fp16"}) {
    const Inputs half = random_inputs(parse_problem(std::string("s_q=64 h_q=2 d=8 dtype=") + dtype), 3);
    const double epsilon = std::string(dtype) == "bf16" ? 0x1p-8 : 0x1p-11;
    for (std::int64_t row = 0; row < 64; ++row) {
      for (int i = 0; i < 8; ++i) {
        const std::uint16_t bits = half.tensors.views.q.at<std::uint16_t>(0, row, 0)[i];
        const double sign = (bits & 0x8000) != 0 ? -1 : 1;
        const int exponent_bits = epsilon == 0x1p-8 ? 8 : 5, mantissa_bits = 15 - exponent_bits;
        const int exponent = (bits & 0x7fff) >> mantissa_bits;
        const double mantissa = (bits & ((1 << mantissa_bits) - 1)) * std::ldexp(1.0, -mantissa_bits);
        const int bias = (1 << (exponent_bits - 1)) - 1;
        const double value =
            exponent == 0 ? sign * std::ldexp(mantissa, 1 - bias) : sign * std::ldexp(1 + mantissa, exponent - bias);
        const double exact = wide.tensors.views.q.at<float>(0, row, 0)[i];
        EXPECT_LE(std::abs(value - exact), epsilon * std::abs(exact)) << dtype;
      }
    }
  }
}

TEST(RandomInputs, TensorsBeyondTheMachineAreRefused) {
  EXPECT_ERROR((void)random_inputs(parse_problem("s_q=100000000000 h_q=32 d=128"), 1), ErrorKind::unsupported, "GiB");
}

}  // namespace
}  // namespace rotunda::cli
