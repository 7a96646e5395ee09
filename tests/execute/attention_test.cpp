// The executor: checks, accounting, traces, and what happens when a rank fails.
#include <gtest/gtest.h>

#include <barrier>
#include <chrono>
#include <cmath>
#include <mutex>
#include <vector>

#include "support/distributed.hpp"
#include "support/error_test.hpp"
#include "support/results.hpp"

namespace rotunda::testing {
namespace {

const char* const kText = "dtype=bf16 b=2 s_q=60 h_q=4 h_kv=2 d=16 mask=causal sink=learnable max_logit=1 grad=1";

/// Runs body on every rank with its plan and scattered tensors.
template <class Body>
void on_ranks(int ranks, const PlanOptions& options, const LocalOptions& local_options, Body&& body) {
  const Problem problem = parse_problem(kText);
  ProblemTensors tensors(problem, {.seed = 5});
  auto group = make_local_group(ranks, local_options);
  run_ranks(group, [&](Transport& transport) {
    const auto plan = agree_on_plan(problem, options, transport);
    LocalTensors local(*plan, 0);
    local.take(tensors.views());
    Attention attention(plan, transport);
    body(attention, local.views(), transport);
  });
}

TEST(Attention, CountsBytesAndWorkspaceExactly) {
  for (const auto schedule : kScheduleKinds) {
    PlanOptions options;
    options.schedule = schedule;
    on_ranks(4, options, {}, [&](Attention& attention, Tensors& tensors, Transport&) {
      const Plan& plan = attention.plan();
      attention.forward(tensors);
      EXPECT_EQ(attention.stats().bytes_received, cost(plan.problem, plan.forward).bytes_received);
      EXPECT_EQ(attention.stats().bytes_sent, cost(plan.problem, plan.forward).bytes_sent);
      EXPECT_EQ(attention.stats().workspace_bytes, plan.forward.workspace_bytes + plan.kernel_workspace_bytes);
      attention.backward(tensors);
      EXPECT_EQ(attention.stats().bytes_received, cost(plan.problem, *plan.backward).bytes_received);
      EXPECT_LE(attention.stats().workspace_bytes, plan.peak_bytes());
      EXPECT_LE(attention.stats().exposed_seconds, attention.stats().seconds);
    });
  }
}

TEST(Attention, TracesEveryStepInOrder) {
  on_ranks(2, {}, {}, [](Attention& attention, Tensors& tensors, Transport&) {
    attention.set_tracing(true);
    attention.forward(tensors);
    EXPECT_EQ(attention.events().size(), attention.plan().forward.steps.size());
    double time = 0;
    int attends = 0;
    for (const TraceEvent& event : attention.events()) {
      EXPECT_LE(time, event.begin);
      EXPECT_LE(event.begin, event.end);
      time = event.end;
      attends += event.name.rfind("attend", 0) == 0 ? 1 : 0;
    }
    EXPECT_GE(attends, 1);
  });
}

TEST(Attention, NamesTheTensorThatIsWrong) {
  struct Slip {
    std::function<void(Tensors&)> make;
    const char* said;
  };
  const Slip slips[] = {
      {[](Tensors& t) { t.k.shape[2] = 3; }, "tensor k on rank"},
      {[](Tensors& t) { t.q.dtype = DType::fp16; }, "the plan wants bf16"},
      {[](Tensors& t) { t.v.data = nullptr; }, "tensor v on rank"},
      {[](Tensors& t) { t.lse = {}; }, "tensor lse on rank"},
      {[](Tensors& t) { t.sink = {}; }, "tensor sink on rank"},
      {[](Tensors& t) { t.out.stride[3] = 2; }, "tensor out on rank"},
  };
  for (const Slip& slip : slips) {
    EXPECT_ERROR(on_ranks(3, {}, {},
                          [&](Attention& attention, Tensors& tensors, Transport&) {
                            slip.make(tensors);
                            attention.forward(tensors);
                          }),
                 ErrorKind::bad_input, slip.said);
  }
}

TEST(Attention, WorksInMemoryOfTheCallers) {
  on_ranks(2, {}, {}, [](Attention& attention, Tensors& tensors, Transport&) {
    attention.forward(tensors);
    const HostBuffer own(attention.workspace_bytes());
    std::vector<double> before;
    for_each_element(tensors.out, [&](auto b, auto row, auto head, auto dim) {
      before.push_back(read(tensors.out, b, row, head, dim));
      write(tensors.out, b, row, head, dim, 0);
    });
    tensors.workspace = {own.data(), static_cast<std::size_t>(own.bytes())};
    attention.forward(tensors);
    std::size_t i = 0;
    for_each_element(tensors.out, [&](auto b, auto row, auto head, auto dim) {
      EXPECT_EQ(read(tensors.out, b, row, head, dim), before[i++]);
    });
  });
}

TEST(Attention, NamesAWorkspaceThatIsTooSmall) {
  EXPECT_ERROR(on_ranks(1, {}, {},
                        [](Attention& attention, Tensors& tensors, Transport&) {
                          const HostBuffer small(64);
                          tensors.workspace = {small.data(), 64};
                          attention.forward(tensors);
                        }),
               ErrorKind::bad_input, "the workspace on rank 0 has 64 bytes");
}

// Where lse alone is differentiated, by 1 everywhere, dq = scale·P·k and dk = scale·Pᵀ·q: no value counts, and the
// scalar products of both sides with their gradients are the same sum.
TEST(Attention, DifferentiatesTheLogSumExp) {
  on_ranks(1, {}, {}, [](Attention& attention, Tensors& tensors, Transport&) {
    attention.forward(tensors);
    HostBuffer memory(tensors.lse.elements() * 4);
    tensors.minus_dlse = make_row_view(reinterpret_cast<float*>(memory.data()), tensors.lse.batch(), tensors.lse.rows(),
                                       static_cast<int>(tensors.lse.heads()));
    for_each_element(tensors.minus_dlse,
                     [&](auto b, auto row, auto head, auto) { write(tensors.minus_dlse, b, row, head, 0, -1); });
    for_each_element(tensors.dout,
                     [&](auto b, auto row, auto head, auto dim) { write(tensors.dout, b, row, head, dim, 0); });
    attention.backward(tensors);
    for_each_element(tensors.dv,
                     [&](auto b, auto row, auto head, auto dim) { EXPECT_EQ(read(tensors.dv, b, row, head, dim), 0); });
    const auto product = [](const TensorView& a, const TensorView& b) {
      double sum = 0;
      for_each_element(a, [&](auto batch, auto row, auto head, auto dim) {
        sum += read(a, batch, row, head, dim) * read(b, batch, row, head, dim);
      });
      return sum;
    };
    const double of_q = product(tensors.q, tensors.dq), of_k = product(tensors.k, tensors.dk);
    EXPECT_GT(std::abs(of_q), 1);
    EXPECT_NEAR(of_q, of_k, 0.01 * std::abs(of_q));
    tensors.minus_dlse = tensors.dout;
    EXPECT_ERROR(attention.backward(tensors), ErrorKind::bad_input, "tensor minus_dlse on rank 0");
    tensors.minus_dlse = {};
  });
}

TEST(Attention, BackwardNeedsAPlanWithGradients) {
  Problem problem = parse_problem(kText);
  problem.grad = false;
  auto group = make_local_group(1);
  Attention attention(make_plan(problem, {}, 0, 1), *group[0]);
  EXPECT_ERROR(attention.backward({}), ErrorKind::bad_input, "grad=1");
}

TEST(Attention, APlanBelongsToItsRankAndGroup) {
  auto group = make_local_group(2);
  EXPECT_ERROR(Attention(nullptr, *group[0]), ErrorKind::bad_input, "without a plan");
  EXPECT_ERROR(Attention(make_plan(parse_problem(kText), {}, 0, 3), *group[0]), ErrorKind::bad_input, "rank 0 of 3");
}

TEST(Attention, ARankThatFailsIsNamedToTheOthers) {
  for (const auto kind : {Fault::Kind::throws, Fault::Kind::dies, Fault::Kind::stalls}) {
    LocalOptions local;
    local.timeout = std::chrono::seconds(6);  // others may be late too where the machine is busy
    local.fault = {kind, 1, 1};
    PlanOptions options;
    options.schedule = ScheduleKind::p2p;
    const auto begin = std::chrono::steady_clock::now();
    std::mutex mutex;
    std::barrier all_agree(3);  // or a late one learns of it while it agrees on the plan
    int told = 0;
    try {
      on_ranks(3, options, local, [&](Attention& attention, Tensors& tensors, Transport& transport) {
        all_agree.arrive_and_wait();
        try {
          attention.forward(tensors);
          attention.backward(tensors);
        } catch (const Error& error) {
          const std::scoped_lock lock(mutex);
          if (transport.rank() != 1 && std::string(error.what()).find("rank 1") != std::string::npos) ++told;
          throw;
        }
      });
      ADD_FAILURE() << "nobody noticed";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::transport) << error.what();
    }
    EXPECT_GE(told, 1);
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(30));
  }
}

}  // namespace
}  // namespace rotunda::testing
