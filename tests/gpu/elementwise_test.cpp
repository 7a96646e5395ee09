// Every operation of Elementwise on a device against the host's, in every layout and with both widths of offsets.
#include "kernel/elementwise/elementwise.hpp"

#include "kernel/elementwise/cuda/operations.hpp"
#include "mirror.hpp"

namespace rotunda {
namespace {

using cuda::IndexWidth;
using testing::expect_equal;
using testing::Form;
using testing::Mirror;

constexpr DType kDTypes[] = {DType::bf16, DType::fp16, DType::fp32};
constexpr IndexWidth kWidths[] = {IndexWidth::automatic, IndexWidth::narrow, IndexWidth::wide};

class CudaElementwise : public testing::GpuTest {
 protected:
  /// Calls body(form, width) for all of them.
  template <class Body>
  static void for_all(Body&& body) {
    std::uint64_t seed = 1;
    for (const Form& form : testing::forms()) {
      for (const IndexWidth width : kWidths) {
        SCOPED_TRACE(::testing::Message() << form << " width " << static_cast<int>(width));
        body(form, width, seed++);
        if (HasFailure()) return;
      }
    }
  }

  ThreadPool threads{1};
  std::unique_ptr<Elementwise> host = host_elementwise(threads);
};

TEST_F(CudaElementwise, Fill) {
  for_all([&](const Form& form, IndexWidth width, std::uint64_t) {
    for (const DType dtype : kDTypes) {
      const Mirror to(device, dtype, form);
      to.upload_all(stream());
      host->fill(to.host(), 2.7F);
      cuda::fill(to.device(), 2.7F, width, stream());
      to.fetch(stream());
      expect_equal(to.fetched(), to.host(), 0);
      to.expect_gaps_untouched();
    }
  });
}

TEST_F(CudaElementwise, Convert) {
  for_all([&](const Form& form, IndexWidth width, std::uint64_t seed) {
    for (const DType source : kDTypes) {
      for (const DType target : kDTypes) {
        SCOPED_TRACE(::testing::Message() << to_string(source) << " to " << to_string(target));
        const Mirror from(device, source, form);
        Form other = form;  // of another layout where that means the same shape
        if (form.layout != Layout::thd) other.layout = Layout::bhsd;
        const Mirror to(device, target, other);
        from.randomize(seed, 300);  // fp16 and bf16 round differently, and some are large
        from.upload(stream());
        to.upload_all(stream());
        host->convert(from.host(), to.host());
        cuda::convert(from.device(), to.device(), width, stream());
        to.fetch(stream());
        expect_equal(to.fetched(), to.host(), 0);
        to.expect_gaps_untouched();
      }
    }
  });
}

TEST_F(CudaElementwise, ConvertRoundsAsTheHostDoes) {
  const float special[] = {65504.0F, 65519.9F, 65520.0F,   -70000.0F, 1e-8F,      6e-8F,   3e-5F,       -6.1e-5F,
                           1e38F,    3.4e38F,  INFINITY,   -INFINITY, NAN,        0.0F,    -0.0F,       1.0F,
                           1e-40F,   -1e-45F,  1.0039062F, 1.01171F,  2.0009766F, 2049.0F, 0.33333334F, -1e-38F};
  for (const DType dtype : kDTypes) {
    const Mirror from(device, DType::fp32, {.d = 24});
    const Mirror to(device, dtype, {.d = 24});
    std::memcpy(from.host().data, special, sizeof special);
    from.upload(stream());
    host->convert(from.host(), to.host());
    cuda_elementwise(device, stream())->convert(from.device(), to.device());
    to.fetch(stream());
    expect_equal(to.fetched(), to.host(), 0);
    for (int i = 0; i < 24; ++i) {
      if (std::isnan(special[i])) continue;
      const double got = testing::read(to.fetched(), 0, 0, 0, i);
      EXPECT_EQ(std::signbit(got), std::signbit(testing::read(to.host(), 0, 0, 0, i))) << special[i];
    }
  }
}

TEST_F(CudaElementwise, Add) {
  for_all([&](const Form& form, IndexWidth width, std::uint64_t seed) {
    for (const DType dtype : kDTypes) {
      const Mirror from(device, dtype, form);
      const Mirror to(device, DType::fp32, form);
      from.randomize(seed);
      to.randomize(seed + 1000, 100);
      from.upload(stream());
      to.upload_all(stream());
      cuda::add(from.device(), to.device(), {}, width, stream());
      const Mirror wide(device, DType::fp32, form);
      host->convert(from.host(), wide.host());
      host->add(wide.host(), to.host(), {});
      to.fetch(stream());
      expect_equal(to.fetched(), to.host(), 0);
      to.expect_gaps_untouched();
    }
  });
}

TEST_F(CudaElementwise, AddKeepsWhatTheSumLoses) {
  for_all([&](const Form& form, IndexWidth width, std::uint64_t seed) {
    for (const DType dtype : kDTypes) {
      const Mirror from(device, dtype, form);
      const Mirror to(device, DType::fp32, form);
      Form dense = form;
      dense.gap = dense.lead = 0;
      const Mirror low(device, DType::fp32, dense);
      from.randomize(seed);
      to.randomize(seed + 1000, 3e4);
      low.randomize(seed + 2000, 1e-3);
      from.upload(stream());
      to.upload(stream());
      low.upload(stream());
      cuda::add(from.device(), to.device(), low.device(), width, stream());
      const Mirror wide(device, DType::fp32, form);
      host->convert(from.host(), wide.host());
      host->add(wide.host(), to.host(), low.host());
      to.fetch(stream());
      low.fetch(stream());
      expect_equal(to.fetched(), to.host(), 0);
      expect_equal(low.fetched(), low.host(), 0);
    }
  });
}

TEST_F(CudaElementwise, RowDot) {
  for_all([&](const Form& form, IndexWidth width, std::uint64_t seed) {
    for (const DType dtype : kDTypes) {
      const Mirror out(device, dtype, form);
      const Mirror dout(device, dtype, form);
      const Mirror delta = testing::row_mirror(device, form);
      out.randomize(seed);
      dout.randomize(seed + 1000);
      out.upload(stream());
      dout.upload(stream());
      delta.upload_all(stream());
      cuda::row_dot(out.device(), dout.device(), delta.device(), width, stream());
      delta.fetch(stream());
      testing::for_each_element(delta.host(), [&](auto b, auto row, auto head, auto) {
        double sum = 0, size = 0;
        for (std::int64_t i = 0; i < form.d; ++i) {
          const double product =
              testing::read(out.host(), b, row, head, i) * testing::read(dout.host(), b, row, head, i);
          sum += product;
          size += std::abs(product);
        }
        ASSERT_NEAR(testing::read(delta.fetched(), b, row, head), sum, 1e-6 * size) << b << ", " << row << ", " << head;
      });
    }
  });
}

/// Spans out of order, of one row, empty, and rows in none of them.
std::vector<RowSpan> some_rows(const Form& form) {
  std::vector<RowSpan> rows;
  for (std::int64_t b = form.b; b-- > 0;) {
    if (form.s > 4) rows.push_back({b, form.s / 2 + 1, form.s - form.s / 2 - 1});
    rows.push_back({b, 0, form.s / 3});
    rows.push_back({b, form.s / 2, 0});
    if (form.s > 0) rows.push_back({b, form.s / 3, 1});
  }
  return rows;
}

TEST_F(CudaElementwise, FinishWithSink) {
  std::uint64_t seed = 1;
  for (const Form& form : testing::forms()) {
    SCOPED_TRACE(form);
    seed += 10;
    const std::vector<RowSpan> rows = some_rows(form);
    const testing::DeviceList<RowSpan> list(device, rows, stream());
    for (const DType dtype : kDTypes) {
      for (const bool learnable : {false, true}) {
        for (const bool with_low : {false, true}) {
          const Mirror acc(device, DType::fp32, form);
          const Mirror out(device, dtype, form);
          const Mirror lse = testing::row_mirror(device, form);
          const Mirror low = testing::row_mirror(device, form);
          const Mirror sink(device, DType::fp32, {.h = std::max<std::int64_t>(form.h, 1)});
          acc.randomize(seed);
          lse.randomize(seed + 1, 3);
          low.randomize(seed + 2, 1e-7);
          sink.randomize(seed + 3, 2);
          if (!lse.host().empty()) testing::write(lse.host(), 0, 0, 0, 0, -HUGE_VAL);
          for (const Mirror* each : {&acc, &lse, &low, &sink}) each->upload(stream());
          out.upload_all(stream());
          const TensorView no;
          cuda::finish_with_sink({acc.device(), lse.device(), with_low ? low.device() : no}, out.device(),
                                 learnable ? sink.device() : no, {rows, list.data()}, stream());
          host->finish_with_sink({acc.host(), lse.host(), with_low ? low.host() : no}, out.host(),
                                 learnable ? sink.host() : no, {rows, nullptr});
          out.fetch(stream());
          lse.fetch(stream());
          expect_equal(lse.fetched(), lse.host(), 1e-6, 1e-6);
          expect_equal(out.fetched(), out.host(), testing::rounding(dtype), 1e-7);
          out.expect_gaps_untouched();
          if (HasFailure()) return;
        }
      }
    }
  }
}

TEST_F(CudaElementwise, FinishWithSinksThatAreNotFinite) {
  // Sinks by head: NaN, both infinities. Row 1 sees nothing: its out is 0 whatever the sink.
  const Form form{Layout::bshd, 1, 3, 3, 64};
  const Mirror acc(device, DType::fp32, form), out(device, DType::bf16, form);
  const Mirror lse = testing::row_mirror(device, form);
  const Mirror sink(device, DType::fp32, {.h = 3});
  acc.randomize(1);
  lse.randomize(2);
  const double sinks[] = {testing::kNaN, HUGE_VAL, -HUGE_VAL};
  for (std::int64_t head = 0; head < 3; ++head) {
    testing::write(sink.host(), 0, 0, head, 0, sinks[head]);
    testing::write(lse.host(), 0, 1, head, 0, -HUGE_VAL);
    testing::fill(acc.host().narrow_rows(1, 1), 0);
  }
  for (const Mirror* each : {&acc, &lse, &sink}) each->upload(stream());
  const std::vector<RowSpan> rows = {{0, 0, 3}};
  const testing::DeviceList<RowSpan> list(device, rows, stream());
  cuda::finish_with_sink({acc.device(), lse.device(), {}}, out.device(), sink.device(), {rows, list.data()}, stream());
  host->finish_with_sink({acc.host(), lse.host(), {}}, out.host(), sink.host(), {rows, nullptr});
  out.fetch(stream());
  lse.fetch(stream());
  expect_equal(lse.fetched(), lse.host(), 1e-6, 1e-6);
  expect_equal(out.fetched(), out.host(), testing::rounding(DType::bf16), 1e-7);
  for (std::int64_t head = 0; head < 3; ++head) EXPECT_EQ(testing::read(out.fetched(), 0, 1, head, 63), 0) << head;
}

TEST_F(CudaElementwise, FinishTakesManySpans) {
  for (const Layout layout : {Layout::bhsd, Layout::bshd}) {
    const Form form{layout, 2, 300, 3, 40};
    SCOPED_TRACE(form);
    std::vector<RowSpan> rows;  // every third row of one batch entry, all of the other in two that overlap
    for (std::int64_t row = 299; row > 0; row -= 3) rows.push_back({1, row, 1});
    rows.insert(rows.end(), {{0, 0, 200}, {0, 150, 150}});
    const testing::DeviceList<RowSpan> list(device, rows, stream());
    const Mirror acc(device, DType::fp32, form), out(device, DType::fp32, form);
    const Mirror lse = testing::row_mirror(device, form);
    acc.randomize(1);
    lse.randomize(2);
    acc.upload(stream());
    lse.upload(stream());
    cuda::finish_with_sink({acc.device(), lse.device(), {}}, out.device(), {}, {rows, list.data()}, stream());
    std::erase_if(rows, [](const RowSpan& span) { return span.batch == 0; });
    rows.push_back({0, 0, 300});  // the host's would take a row in twice
    host->finish_with_sink({acc.host(), lse.host(), {}}, out.host(), {}, {rows, nullptr});
    out.fetch(stream());
    lse.fetch(stream());
    expect_equal(lse.fetched(), lse.host(), 1e-6, 1e-6);
    expect_equal(out.fetched(), out.host(), testing::rounding(DType::fp32), 1e-7);
  }
}

TEST_F(CudaElementwise, FinishWithoutRowsConverts) {
  const Form form{Layout::bshd, 2, 5, 3, 64};
  const Mirror acc(device, DType::fp32, form);
  const Mirror out(device, DType::bf16, form);
  const Mirror lse = testing::row_mirror(device, form);
  acc.randomize(1);
  lse.randomize(2);
  acc.upload(stream());
  lse.upload(stream());
  cuda_elementwise(device, stream())->finish_with_sink({acc.device(), lse.device(), {}}, out.device(), {}, {});
  host->convert(acc.host(), out.host());
  out.fetch(stream());
  lse.fetch(stream());
  expect_equal(out.fetched(), out.host(), 0);
  expect_equal(lse.fetched(), lse.host(), 0);
}

/// The suite's forms, and many rows: more than a launch takes at once.
std::vector<Form> forms_of_statistics() {
  std::vector<Form> forms = testing::forms();
  forms.push_back({Layout::bshd, 2, 20000, 17, 1});
  forms.push_back({Layout::bshd, 1, 2200003, 1, 1});
  return forms;
}

TEST_F(CudaElementwise, FillSink) {
  for (const Form& form : forms_of_statistics()) {
    SCOPED_TRACE(form);
    const std::vector<RowSpan> rows = some_rows(form);
    const testing::DeviceList<RowSpan> list(device, rows, stream());
    const Mirror lse = testing::row_mirror(device, form);
    const Mirror sink(device, DType::fp32, {.h = std::max<std::int64_t>(form.h, 1)});
    lse.randomize(7);
    sink.randomize(8);
    for (const bool learnable : {true, false}) {
      lse.upload(stream());
      sink.upload(stream());
      const auto ours = cuda_elementwise(device, stream());
      ours->fill_sink(lse.device(), learnable ? sink.device() : TensorView{}, {rows, list.data()});
      host->fill_sink(lse.host(), learnable ? sink.host() : TensorView{}, {rows, nullptr});
      lse.fetch(stream());
      expect_equal(lse.fetched(), lse.host(), 0);
    }
  }
}

TEST_F(CudaElementwise, SinkGradientIsRightAndRepeats) {
  for (const Form& form : forms_of_statistics()) {
    SCOPED_TRACE(form);
    if (form.h == 0) continue;
    const std::vector<RowSpan> rows = some_rows(form);
    const testing::DeviceList<RowSpan> list(device, rows, stream());
    const Mirror lse = testing::row_mirror(device, form);
    const Mirror delta = testing::row_mirror(device, form);
    const Mirror sink(device, DType::fp32, {.h = form.h});
    const Mirror dsink(device, DType::fp32, {.h = form.h});
    lse.randomize(9, 2);
    delta.randomize(10);
    sink.randomize(11, 2);
    const auto ours = cuda_elementwise(device, stream());
    for (const Mirror* each : {&lse, &delta, &sink}) each->upload(stream());
    const auto run = [&] {
      ours->sink_gradient(lse.device(), delta.device(), sink.device(), {rows, list.data()}, dsink.device());
      dsink.fetch(stream());
    };
    run();
    host->sink_gradient(lse.host(), delta.host(), sink.host(), {rows, nullptr}, dsink.host());
    for (std::int64_t head = 0; head < form.h; ++head) {
      double error = 0;  // of fp32 terms: a few roundings each, and that of the exponent
      for (const RowSpan& span : rows) {
        for (std::int64_t row = span.begin; row < span.begin + span.len; ++row) {
          const double exponent =
              testing::read(sink.host(), 0, 0, head) - testing::read(lse.host(), span.batch, row, head);
          const double term = std::exp(exponent) * testing::read(delta.host(), span.batch, row, head);
          error += std::abs(term) * (5 + std::abs(exponent)) * 0x1p-24;
        }
      }
      EXPECT_NEAR(testing::read(dsink.fetched(), 0, 0, head), testing::read(dsink.host(), 0, 0, head), error)
          << "head " << head;
    }
    const std::vector<double> first = testing::to_vector(dsink.fetched());
    for (int i = 0; i < 5; ++i) {
      run();
      EXPECT_EQ(testing::to_vector(dsink.fetched()), first);
    }
  }
}

TEST_F(CudaElementwise, SinkGradientHasTheSameBitsWhereRowsAreNotAligned) {
  constexpr std::int64_t kRows = 300004, kHeads = 3;
  std::vector<double> want;
  for (const std::int64_t lead : {0, 1, 2, 3}) {
    const Mirror lse(device, make_row_view(nullptr, 1, kRows, kHeads), lead);
    const Mirror delta(device, make_row_view(nullptr, 1, kRows, kHeads), (2 * lead) % 4);
    const Mirror sink(device, DType::fp32, {.h = kHeads}), dsink(device, DType::fp32, {.h = kHeads});
    lse.randomize(21, 2);
    delta.randomize(22);
    sink.randomize(23);
    for (const Mirror* each : {&lse, &delta, &sink}) each->upload(stream());
    const std::vector<RowSpan> rows = {{0, 0, kRows - 3}};
    const testing::DeviceList<RowSpan> list(device, rows, stream());
    cuda::sink_gradient(lse.device(), delta.device(), sink.device(), {rows, list.data()}, dsink.device(), stream());
    dsink.fetch(stream());
    if (want.empty()) want = testing::to_vector(dsink.fetched());
    EXPECT_EQ(testing::to_vector(dsink.fetched()), want) << lead;
  }
}

TEST_F(CudaElementwise, SinkGradientAtInfinities) {
  // Sinks of -inf, +inf and 300; rows without a key have delta 0, and a lse that is the sink's.
  const Form form{Layout::bshd, 1, 6, 3, 1};
  const Mirror lse = testing::row_mirror(device, form), delta = testing::row_mirror(device, form);
  const Mirror sink(device, DType::fp32, {.h = 3}), dsink(device, DType::fp32, {.h = 3});
  lse.randomize(24);
  delta.randomize(25);
  const double sinks[] = {-HUGE_VAL, HUGE_VAL, 300};
  for (std::int64_t head = 0; head < 3; ++head) {
    testing::write(sink.host(), 0, 0, head, 0, sinks[head]);
    for (const std::int64_t row : {1, 4}) {
      testing::write(lse.host(), 0, row, head, 0, sinks[head]);
      testing::write(delta.host(), 0, row, head, 0, 0);
    }
    for (std::int64_t row = 0; head > 0 && row < 6; ++row) testing::write(lse.host(), 0, row, head, 0, sinks[head]);
  }
  for (const Mirror* each : {&lse, &delta, &sink}) each->upload(stream());
  const std::vector<RowSpan> rows = {{0, 0, 6}};
  const testing::DeviceList<RowSpan> list(device, rows, stream());
  cuda::sink_gradient(lse.device(), delta.device(), sink.device(), {rows, list.data()}, dsink.device(), stream());
  host->sink_gradient(lse.host(), delta.host(), sink.host(), {rows, nullptr}, dsink.host());
  dsink.fetch(stream());
  expect_equal(dsink.fetched(), dsink.host(), 1e-6, 1e-6);
}

TEST_F(CudaElementwise, RowMax) {
  for (const std::int64_t rows : {0, 1, 8, 255, 256, 1000}) {
    const Form form{Layout::bshd, 1, rows, 13, 1};
    const Mirror from = testing::row_mirror(device, form);
    const Mirror to(device, DType::fp32, {.h = 13});
    from.randomize(12);
    if (rows > 0) testing::write(from.host(), 0, 0, 3, 0, testing::kNaN);
    from.upload(stream());
    to.upload_all(stream());
    cuda_elementwise(device, stream())->row_max(from.device(), to.device());
    host->row_max(from.host(), to.host());
    to.fetch(stream());
    expect_equal(to.fetched(), to.host(), 0);
  }
}

}  // namespace
}  // namespace rotunda
