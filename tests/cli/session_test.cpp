#include "cli/session.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <nlohmann/json.hpp>

#include "cli/inputs.hpp"
#include "cli/trace.hpp"
#include "cli/verification.hpp"
#include "support/error_test.hpp"

namespace rotunda::cli {
namespace {

SessionSetup setup_of(const Problem& problem, int ranks) {
  SessionSetup setup;
  setup.problem = problem;
  setup.ranks = ranks;
  setup.options.threads = 1;
  setup.timeout = std::chrono::seconds(20);
  return setup;
}

std::vector<Grade> run_and_grade(const Inputs& inputs, int ranks, ScheduleKind kind) {
  TensorStore outputs;
  outputs.allocate(inputs.problem, whole_rows(inputs.problem), output_kinds(inputs.problem));
  SessionSetup setup = setup_of(inputs.problem, ranks);
  setup.options.schedule = kind;
  Session session(setup, inputs.tensors.views);
  session.forward();
  if (inputs.problem.grad) session.backward();
  session.gather(outputs.views);
  return grade(inputs.problem, oracle(inputs.problem, inputs.tensors.views, 1), outputs.views);
}

TEST(Session, GathersEveryOutputInEveryLayout) {
  for (const char* text :
       {"b=2 s_q=21 h_q=4 h_kv=2 d=16 d_v=8 mask=causal grad=1 max_logit=1 sink=learnable layout=bshd",
        "b=2 s_q=21 h_q=4 h_kv=2 d=16 d_v=8 mask=causal grad=1 layout=sbhd dtype=fp16",
        "b=2 s_q=21 h_q=4 h_kv=2 d=16 d_v=8 mask=causal grad=1 layout=bhsd dtype=fp32",
        "cu_q=0,9,10,29 used_q=7,1,19 h_q=4 d=16 grad=1 sink=learnable layout=thd"}) {
    const Inputs inputs = random_inputs(parse_problem(text), 5);
    for (const ScheduleKind kind : {ScheduleKind::p2p, ScheduleKind::a2a}) {
      const auto grades = run_and_grade(inputs, 3, kind);
      EXPECT_EQ(grades.size(), output_kinds(inputs.problem).size()) << text;
      for (const Grade& each : grades) EXPECT_TRUE(each.passed()) << text << " " << each.tensor << " " << each.ratio;
    }
  }
}

TEST(Session, RunsAgainWithTheSameResult) {
  const Inputs inputs = random_inputs(parse_problem("s_q=33 h_q=2 d=16 mask=causal grad=1"), 5);
  Session session(setup_of(inputs.problem, 2), inputs.tensors.views);
  TensorStore first, second;
  first.allocate(inputs.problem, whole_rows(inputs.problem), output_kinds(inputs.problem));
  second.allocate(inputs.problem, whole_rows(inputs.problem), output_kinds(inputs.problem));
  EXPECT_GT(session.both(), 0);
  session.gather(first.views);
  session.both();
  session.gather(second.views);
  const auto bytes = static_cast<std::size_t>(first.views.dq.bytes());
  EXPECT_EQ(std::memcmp(first.views.dq.data, second.views.dq.data, bytes), 0);
}

TEST(Session, NoTokensAtAllIsASuccess) {
  for (const char* text :
       {"layout=thd cu_q=0 h_q=2 d=8 grad=1 max_logit=1", "b=0 s_q=5 h_q=2 d=8 grad=1", "s_q=0 h_q=2 d=8 grad=1"}) {
    const Inputs inputs = random_inputs(parse_problem(text), 1);
    EXPECT_NO_THROW({
      Session session(setup_of(inputs.problem, 3), inputs.tensors.views);
      session.both();
    }) << text;
  }
}

TEST(Session, WhatAPlanRefusesIsThrownHere) {
  const Inputs inputs = random_inputs(parse_problem("s_q=8 h_q=2 d=8"), 1);
  SessionSetup setup = setup_of(inputs.problem, 4);
  setup.options.schedule = ScheduleKind::a2a_p2p;
  setup.options.inner = 3;
  EXPECT_ERROR(Session(setup, inputs.tensors.views), ErrorKind::bad_input, "3");
  setup = setup_of(inputs.problem, 2);
  setup.options.device = Device::Kind::cuda;
  EXPECT_ERROR(Session(setup, inputs.tensors.views), ErrorKind::unsupported, "cuda");
}

TEST(Trace, HasAProcessARankAndTwoLanes) {
  const Inputs inputs = random_inputs(parse_problem("s_q=32 h_q=2 d=16 mask=causal grad=1"), 5);
  SessionSetup setup = setup_of(inputs.problem, 2);
  setup.options.schedule = ScheduleKind::p2p;
  setup.tracing = true;
  Session session(setup, inputs.tensors.views);
  session.both();
  const auto trace = nlohmann::json::parse(trace_text({session.reports()[0].events, session.reports()[1].events}));
  int compute = 0, communication = 0;
  for (const auto& event : trace["traceEvents"]) {
    if (event["ph"] != "X") continue;
    EXPECT_GE(event["dur"].get<double>(), 0);
    EXPECT_GE(event["ts"].get<double>(), 0);
    (event["tid"] == 0 ? compute : communication) += 1;
    EXPECT_LT(event["pid"].get<int>(), 2);
  }
  EXPECT_GE(compute, 4);
  EXPECT_GE(communication, 2);
}

TEST(Affordable, KeepsWhatIsCheapAndShrinksTheRest) {
  const Problem cheap = parse_problem("s_q=64 h_q=2 d=8 mask=causal");
  EXPECT_EQ(affordable(cheap, 1e9), cheap);
  for (
      const char* text :
      {"s_q=65536 h_q=8 d=64 mask=causal window=4095,0",
       "layout=thd cu_q=0,30000,50001,65536 used_q=29999,20001,100 h_q=8 d=64 grad=1",
       "b=2 s_q=40000 s_k=50000 lens_q=30000,1 lens_k=50000,2 h_q=4 d=64",
       "s_q=65536 h_q=8 d=64 prefix=1000 chunk=8192 mask=causal",
       R"({"s_q":60000,"h_q":4,"d":64,"slices":[{"batch":0,"q_begin":0,"q_len":60000,"k_begin":0,"k_len":60000,"q_pos":0,"k_pos":0,"left":null,"right":0}]})"}) {
    const Problem problem = parse_problem(text);
    const auto smaller = affordable(problem, 1e9);
    ASSERT_TRUE(smaller.has_value()) << text;
    EXPECT_LT(smaller->s_q, problem.s_q);
    EXPECT_FALSE(mask_slices(*smaller).empty()) << text;
    EXPECT_EQ(parse_problem(to_text(*smaller)), *smaller);
  }
}

}  // namespace
}  // namespace rotunda::cli
