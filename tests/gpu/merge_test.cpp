// Merging partial results on a device against float64.
#include "kernel/elementwise/cuda/merge.hpp"

#include <cmath>

#include "mirror.hpp"

namespace rotunda {
namespace {

using testing::expect_equal;
using testing::Form;
using testing::Mirror;

double log_add(double a, double b) {
  const double high = std::max(a, b);
  return high == -HUGE_VAL ? high : high + std::log(std::exp(a - high) + std::exp(b - high));
}

class CudaMerge : public testing::GpuTest {
 protected:
  /// A partial result with some rows that saw nothing: lse -inf, out NaN.
  void make_partial(const Mirror& out, const Mirror& lse, std::uint64_t seed) const {
    out.randomize(seed);
    lse.randomize(seed + 1, 3);
    testing::for_each_element(lse.host(), [&](auto b, auto row, auto head, auto) {
      if (testing::splitmix64(seed + static_cast<std::uint64_t>(row * 7 + head)) % 3 != 0) return;
      testing::write(lse.host(), b, row, head, 0, -HUGE_VAL);
      for (std::int64_t i = 0; i < out.host().dim(); ++i) testing::write(out.host(), b, row, head, i, testing::kNaN);
    });
    out.upload(stream());
    lse.upload(stream());
  }
};

/// The exact state of a chain of partial results.
struct Exact {
  std::vector<double> acc, lse;

  void merge(const TensorView& out, const TensorView& partial_lse) {
    const std::vector<double> values = testing::to_vector(out), lses = testing::to_vector(partial_lse);
    acc.resize(values.size(), 0);
    lse.resize(lses.size(), -HUGE_VAL);
    const std::size_t dim = lses.empty() ? 0 : values.size() / lses.size();
    for (std::size_t row = 0; row < lses.size(); ++row) {
      if (lses[row] == -HUGE_VAL) continue;
      const double after = log_add(lse[row], lses[row]);
      for (std::size_t i = row * dim; i < (row + 1) * dim; ++i) {
        acc[i] = acc[i] * std::exp(lse[row] - after) + values[i] * std::exp(lses[row] - after);
      }
      lse[row] = after;
    }
  }
};

void expect_values(const TensorView& got, const std::vector<double>& want, double relative, double absolute) {
  const std::vector<double> values = testing::to_vector(got);
  ASSERT_EQ(values.size(), want.size());
  for (std::size_t i = 0; i < want.size(); ++i) {
    if (values[i] == want[i]) continue;
    ASSERT_NEAR(values[i], want[i], relative * std::abs(want[i]) + absolute) << "element " << i;
  }
}

TEST_F(CudaMerge, ChainsEqualTheExactSum) {
  constexpr int kSteps = 4;
  constexpr double kAbsolute = 1e-5;  // values up to 5 with weights off by the roundings of lse, up to 15
  for (const Form& form : testing::forms()) {
    for (const auto& [partial, final] : {std::pair{DType::bf16, DType::bf16}, std::pair{DType::fp16, DType::fp16},
                                         std::pair{DType::fp32, DType::fp32}, std::pair{DType::fp32, DType::bf16},
                                         std::pair{DType::fp32, DType::fp16}, std::pair{DType::bf16, DType::fp32}}) {
      for (const bool with_low : {true, false}) {
        SCOPED_TRACE(::testing::Message() << form << " " << to_string(partial) << " to " << to_string(final));
        const Mirror out(device, final, form);
        const Mirror acc(device, DType::fp32, form);
        const Mirror lse = testing::row_mirror(device, form);
        const Mirror low = testing::row_mirror(device, form);
        for (const Mirror* each : {&out, &acc, &lse, &low}) each->upload_all(stream());  // NaN
        Exact exact;
        const RowState state{acc.device(), lse.device(), with_low ? low.device() : TensorView{}};
        for (int step = 0; step < kSteps; ++step) {
          const Mirror part(device, partial, form);
          const Mirror part_lse = testing::row_mirror(device, form);
          make_partial(part, part_lse, static_cast<std::uint64_t>(step) * 10);
          exact.merge(part.host(), part_lse.host());
          cuda::merge({part.device(), part_lse.device()}, state, out.device(), {step == 0, step + 1 == kSteps}, device,
                      stream());
          acc.fetch(stream());
          lse.fetch(stream());
          expect_values(lse.fetched(), exact.lse, 4e-7, 4e-7);
          if (step + 1 < kSteps) expect_values(acc.fetched(), exact.acc, 0, kAbsolute);
        }
        out.fetch(stream());
        expect_values(out.fetched(), exact.acc, testing::rounding(final), kAbsolute);
        out.expect_gaps_untouched();
        acc.expect_gaps_untouched();
        if (HasFailure()) return;
      }
    }
  }
}

TEST_F(CudaMerge, BitsDoNotDependOnWhereRowsLie) {
  for (const std::int64_t d : {8, 40, 64, 200, 257, 512}) {
    std::vector<double> want_acc, want_out;
    for (const Form& form :
         {Form{Layout::bshd, 2, 67, 4, d}, Form{Layout::sbhd, 2, 67, 4, d, 8}, Form{Layout::bhsd, 2, 67, 4, d, 0, 8},
          Form{Layout::bshd, 2, 67, 4, d, 3}, Form{Layout::bhsd, 2, 67, 4, d, 0, 1}}) {
      SCOPED_TRACE(form);
      const Mirror first(device, DType::bf16, form), second(device, DType::bf16, form);
      const Mirror first_lse = testing::row_mirror(device, form), second_lse = testing::row_mirror(device, form);
      const Mirror acc(device, DType::fp32, form), out(device, DType::bf16, form);
      const Mirror lse = testing::row_mirror(device, form), low = testing::row_mirror(device, form);
      make_partial(first, first_lse, 20);
      make_partial(second, second_lse, 30);
      const RowState state{acc.device(), lse.device(), low.device()};
      cuda::merge({first.device(), first_lse.device()}, state, {}, {true, false}, device, stream());
      cuda::merge({second.device(), second_lse.device()}, state, {}, {false, false}, device, stream());
      acc.fetch(stream());
      cuda::merge({first.device(), first_lse.device()}, state, out.device(), {false, true}, device, stream());
      out.fetch(stream());
      const std::vector<double> got_acc = testing::to_vector(acc.fetched()),
                                got_out = testing::to_vector(out.fetched());
      if (want_acc.empty()) {
        want_acc = got_acc;
        want_out = got_out;
      }
      EXPECT_EQ(got_acc, want_acc);
      EXPECT_EQ(got_out, want_out);
    }
  }
}

TEST_F(CudaMerge, OneCallNeedsNoState) {
  const Form form{Layout::bshd, 2, 19, 3, 128};
  const Mirror part(device, DType::bf16, form);
  const Mirror part_lse = testing::row_mirror(device, form);
  const Mirror out(device, DType::bf16, form);
  const Mirror lse = testing::row_mirror(device, form);
  make_partial(part, part_lse, 5);
  cuda::merge({part.device(), part_lse.device()}, {{}, lse.device(), {}}, out.device(), {}, device, stream());
  out.fetch(stream());
  lse.fetch(stream());
  testing::for_each_element(part.host(), [&](auto b, auto row, auto head, auto i) {
    if (testing::read(part_lse.host(), b, row, head) == -HUGE_VAL) testing::write(part.host(), b, row, head, i, 0);
  });
  expect_equal(out.fetched(), part.host(), 0);
  expect_equal(lse.fetched(), part_lse.host(), 0);
}

TEST_F(CudaMerge, LowPartKeepsALongRingExact) {
  // 1000 steps of equal weight: fp32 alone would drift by many roundings.
  const Form form{Layout::bshd, 1, 3, 2, 8};
  const Mirror part(device, DType::fp32, form), acc(device, DType::fp32, form);
  const Mirror part_lse = testing::row_mirror(device, form), lse = testing::row_mirror(device, form);
  const Mirror low = testing::row_mirror(device, form);
  part.randomize(3);
  testing::fill(part_lse.host(), 20);
  part.upload(stream());
  part_lse.upload(stream());
  for (int step = 0; step < 1000; ++step) {
    cuda::merge({part.device(), part_lse.device()}, {acc.device(), lse.device(), low.device()}, {}, {step == 0, false},
                device, stream());
  }
  lse.fetch(stream());
  low.fetch(stream());
  testing::for_each_element(lse.host(), [&](auto b, auto row, auto head, auto) {
    const double sum = testing::read(lse.fetched(), b, row, head) + testing::read(low.fetched(), b, row, head);
    EXPECT_NEAR(sum, 20 + std::log(1000.0), 1e-9);
  });
}

TEST_F(CudaMerge, NaNStays) {
  const Form form{Layout::bshd, 1, 4, 1, 16};
  const Mirror part(device, DType::bf16, form), out(device, DType::bf16, form);
  const Mirror part_lse = testing::row_mirror(device, form), lse = testing::row_mirror(device, form);
  part.randomize(3);
  part_lse.randomize(4);
  testing::write(part.host(), 0, 1, 0, 3, testing::kNaN);
  testing::write(part_lse.host(), 0, 2, 0, 0, testing::kNaN);
  part.upload(stream());
  part_lse.upload(stream());
  cuda::merge({part.device(), part_lse.device()}, {{}, lse.device(), {}}, out.device(), {}, device, stream());
  out.fetch(stream());
  lse.fetch(stream());
  for (std::int64_t i = 0; i < 16; ++i) {
    EXPECT_FALSE(std::isnan(testing::read(out.fetched(), 0, 0, 0, i)));
    EXPECT_EQ(std::isnan(testing::read(out.fetched(), 0, 1, 0, i)), i == 3);
    EXPECT_TRUE(std::isnan(testing::read(out.fetched(), 0, 2, 0, i)));
  }
  EXPECT_TRUE(std::isnan(testing::read(lse.fetched(), 0, 2, 0)));
}

}  // namespace
}  // namespace rotunda
