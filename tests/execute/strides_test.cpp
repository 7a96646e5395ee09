// P11: tensors that do not lie densely give the same bits as contiguous copies; what can't be read is refused by name.
#include <gtest/gtest.h>

#include <functional>

#include "support/case_file.hpp"
#include "support/distributed.hpp"
#include "support/error_test.hpp"
#include "support/results.hpp"

namespace rotunda::testing {
namespace {

/// Memory that lies as a test wants it.
class Arena {
 public:
  TensorView make(const TensorView& like, std::array<std::int64_t, 4> stride, std::int64_t elements,
                  std::int64_t offset = 0) {
    buffers_.emplace_back(elements * static_cast<std::int64_t>(size_of(like.dtype)));
    std::fill_n(buffers_.back().data(), buffers_.back().bytes(), std::byte{0xff});
    return at(buffers_.back(), like, stride, offset);
  }
  TensorView copy_of(const TensorView& from, std::array<std::int64_t, 4> stride, std::int64_t elements) {
    const TensorView view = make(from, stride, elements);
    fill_from(from, view);
    return view;
  }
  static TensorView at(const HostBuffer& buffer, const TensorView& like, std::array<std::int64_t, 4> stride,
                       std::int64_t offset) {
    TensorView view = like;
    view.data = buffer.data() + offset * static_cast<std::int64_t>(size_of(like.dtype));
    view.stride = stride;
    return view;
  }
  static void fill_from(const TensorView& from, const TensorView& to) {
    for_each_element(from, [&](auto b, auto row, auto head, auto dim) {
      write(to, b, row, head, dim, read(from, b, row, head, dim));
    });
  }
  HostBuffer& buffer(std::int64_t bytes) { return buffers_.emplace_back(bytes); }

 private:
  std::vector<HostBuffer> buffers_;
};

/// Runs a case with each rank's local tensors replaced by `relay`, and expects the bits of the plain run.
void expect_same_bits(const CaseFile& c, const std::function<void(Tensors&, Arena&)>& relay) {
  ProblemTensors plain = make_tensors(c);
  ProblemTensors strided = make_tensors(c);
  for (const int ranks : c.ranks) {
    for (const ScheduleKind schedule : c.schedules) {
      DistributedOptions options;
      options.ranks = ranks;
      options.plan.schedule = schedule;
      run_distributed(c.problem, options, plain.views());
      auto group = make_local_group(ranks);
      std::mutex mutex;
      run_ranks(group, [&](Transport& transport) {
        const auto plan = agree_on_plan(c.problem, options.plan, transport);
        LocalTensors local(*plan, 0);
        local.take(strided.views());
        Tensors views = local.views();
        Arena arena;
        relay(views, arena);
        Attention attention(plan, transport);
        attention.forward(views);
        attention.backward(views);
        for (const auto& [from, to] : {std::pair{views.out, local.views().out}, std::pair{views.dq, local.views().dq},
                                       std::pair{views.dk, local.views().dk}, std::pair{views.dv, local.views().dv}}) {
          if (from.data != to.data) Arena::fill_from(from, to);
        }
        const std::scoped_lock lock(mutex);
        local.give(strided.views());
      });
      ASSERT_EQ(differing_bits(plain.views(), strided.views()), "") << ranks << " " << to_string(schedule);
    }
  }
}

std::array<std::int64_t, 4> bhsd(const TensorView& v) {
  return {v.heads() * v.rows() * v.dim(), v.dim(), v.rows() * v.dim(), 1};
}

TEST(Strides, DoutIsATransposedView) {  // (a)
  expect_same_bits(read_case("P11"),
                   [](Tensors& t, Arena& arena) { t.dout = arena.copy_of(t.dout, bhsd(t.dout), t.dout.elements()); });
}

TEST(Strides, QueriesKeysAndValuesShareOneBuffer) {  // (b)
  expect_same_bits(read_case("P11"), [](Tensors& t, Arena& arena) {
    const std::int64_t d = t.q.dim();
    const std::int64_t heads = t.q.heads() + t.k.heads() + t.v.heads();
    const std::array<std::int64_t, 4> stride = {t.q.rows() * heads * d, heads * d, d, 1};
    const HostBuffer& buffer = arena.buffer(t.q.batch() * t.q.rows() * heads * d * 2);
    std::int64_t offset = 0;
    for (TensorView* view : {&t.q, &t.k, &t.v}) {
      const TensorView packed = Arena::at(buffer, *view, stride, offset);
      Arena::fill_from(*view, packed);
      offset += view->heads() * d;
      *view = packed;
    }
  });
}

TEST(Strides, OnlyTheValuesAreTransposed) {  // (c)
  expect_same_bits(read_case("P11"),
                   [](Tensors& t, Arena& arena) { t.v = arena.copy_of(t.v, bhsd(t.v), t.v.elements()); });
}

TEST(Strides, OutAndDoutLieDifferently) {  // (d)
  expect_same_bits(read_case("P11"), [](Tensors& t, Arena& arena) {
    t.out = arena.make(t.out, bhsd(t.out), t.out.elements());
    t.dq = arena.make(t.dq, bhsd(t.dq), t.dq.elements());
  });
}

TEST(Strides, RowsAreFurtherApart) {  // (e)
  expect_same_bits(read_case("P11"), [](Tensors& t, Arena& arena) {
    for (TensorView* view : {&t.q, &t.k, &t.v, &t.out, &t.dout, &t.dq, &t.dk, &t.dv}) {
      const std::int64_t row = view->heads() * view->dim() + 8;
      const std::array<std::int64_t, 4> stride = {view->rows() * row, row, view->dim(), 1};
      *view = arena.copy_of(*view, stride, view->batch() * view->rows() * row);
    }
  });
}

TEST(Strides, DoutIsOneElementExpanded) {  // (f)
  expect_same_bits(read_case("P11_ones"), [](Tensors& t, Arena& arena) {
    // The last axis must be contiguous: a row of ones seen from everywhere.
    const TensorView ones = arena.make(t.dout, {0, 0, 0, 1}, t.dout.dim());
    for (std::int64_t i = 0; i < t.dout.dim(); ++i) write(ones, 0, 0, 0, i, 1);
    t.dout = ones;
  });
}

TEST(Strides, AStridedLastAxisIsRefusedByName) {  // (g)
  const CaseFile c = read_case("P11_ones");
  ProblemTensors tensors = make_tensors(c);
  auto group = make_local_group(2);
  EXPECT_ERROR(run_ranks(group,
                         [&](Transport& transport) {
                           const auto plan = agree_on_plan(c.problem, {}, transport);
                           LocalTensors local(*plan, 0);
                           local.take(tensors.views());
                           local.views().dout.stride[3] = 2;
                           Attention attention(plan, transport);
                           attention.forward(local.views());
                           attention.backward(local.views());
                         }),
               ErrorKind::bad_input, "tensor dout on rank");
}

}  // namespace
}  // namespace rotunda::testing
