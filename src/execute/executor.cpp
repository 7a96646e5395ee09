#include "execute/executor.hpp"

#include <fmt/format.h>

#include <string>
#include <type_traits>

#include "base/fail.hpp"

namespace rotunda {
namespace {

/// A step's lane and name in a trace.
struct Label {
  TraceEvent::Lane lane = TraceEvent::Lane::compute;
  std::string name;
};

Label label(const Program& program, const Step& step) {
  const auto exchange = [&](int index) { return program.exchanges[static_cast<std::size_t>(index)].label; };
  return std::visit(
      [&]<class S>(const S& s) -> Label {
        constexpr auto kCompute = TraceEvent::Lane::compute;
        constexpr auto kCommunication = TraceEvent::Lane::communication;
        if constexpr (std::is_same_v<S, Post>) return {kCommunication, "post " + exchange(s.exchange)};
        if constexpr (std::is_same_v<S, Await>) return {kCommunication, "receive " + exchange(s.exchange)};
        if constexpr (std::is_same_v<S, AwaitSent>) return {kCommunication, "send " + exchange(s.exchange)};
        if constexpr (std::is_same_v<S, Fill>) return {kCompute, "fill"};
        if constexpr (std::is_same_v<S, Convert>) return {kCompute, "convert"};
        if constexpr (std::is_same_v<S, Add>) return {kCompute, "add"};
        if constexpr (std::is_same_v<S, FillSink>) return {kCompute, "fill sink"};
        if constexpr (std::is_same_v<S, Delta>) return {kCompute, "delta"};
        if constexpr (std::is_same_v<S, Finish>) return {kCompute, "finish"};
        if constexpr (std::is_same_v<S, SinkGradient>) return {kCompute, "dsink"};
        if constexpr (std::is_same_v<S, RowMax>) return {kCompute, "row max"};
        if constexpr (std::is_same_v<S, Attend>) return {kCompute, fmt::format("attend {} slices", s.slices.size())};
        if constexpr (std::is_same_v<S, AttendBackward>) {
          return {kCompute, fmt::format("attend backward {} slices", s.slices.size())};
        }
      },
      step);
}

}  // namespace

void Executor::run() {
  for (const Step& step : program_.steps) {
    if (r_.clock != nullptr) r_.clock->begin();
    std::visit([&](const auto& s) { perform(s); }, step);
    if (r_.clock == nullptr) continue;
    const bool waits = std::holds_alternative<Await>(step) || std::holds_alternative<AwaitSent>(step);
    const Label what = r_.clock->keeps_events() ? label(program_, step) : Label{};
    r_.clock->end(what.lane, what.name, waits);
  }
}

const Exchange& Executor::exchange(int index) const {
  return program_.exchanges[static_cast<std::size_t>(index)];
}

std::vector<Message> Executor::messages(const std::vector<Transfer>& transfers) const {
  std::vector<Message> result;
  result.reserve(transfers.size());
  for (const Transfer& transfer : transfers) result.push_back({transfer.peer, view(transfer.region)});
  return result;
}

TensorView Executor::sink(std::int64_t head, std::int64_t heads) const {
  if (r_.plan.problem.sink != Sink::learnable) return {};
  return buffers_.user(Binding::sink).narrow_heads(head, heads);
}

HeadMap Executor::head_map(int q_head, int kv_head) const {
  const Problem& problem = r_.plan.problem;
  return {problem.h_q / problem.h_kv, q_head, kv_head};
}

void Executor::perform(const Post& step) {
  const Exchange& x = exchange(step.exchange);
  r_.transport.post(x.id, messages(x.sends), messages(x.receives));
}

void Executor::perform(const Await& step) {
  r_.transport.await(exchange(step.exchange).id);
}

void Executor::perform(const AwaitSent& step) {
  r_.transport.await_sent(exchange(step.exchange).id);
}

void Executor::perform(const Fill& step) {
  r_.elementwise.fill(view(step.to), static_cast<float>(step.value));
}

void Executor::perform(const Convert& step) {
  r_.elementwise.convert(view(step.from), view(step.to));
}

void Executor::perform(const Add& step) {
  r_.elementwise.add(view(step.from), view(step.to), view(step.low));
}

void Executor::perform(const FillSink& step) {
  r_.elementwise.fill_sink(view(step.lse), sink(step.lse.head, step.lse.heads), r_.lists.rows(step.rows));
}

void Executor::perform(const Delta& step) {
  r_.elementwise.row_dot(view(step.out), view(step.dout), view(step.delta));
  // lse is the log of what P is divided by: its gradient reaches the scores as P·dlse, and dS = P∘(dP - delta).
  if (buffers_.minus_dlse().data != nullptr) r_.elementwise.add(buffers_.minus_dlse(), view(step.delta), {});
}

void Executor::perform(const Finish& step) {
  const RowState state{view(step.acc), view(step.lse), view(step.lse_low)};
  r_.elementwise.finish_with_sink(state, view(step.out), sink(step.head, step.out.heads), r_.lists.rows(step.rows));
}

void Executor::perform(const SinkGradient& step) {
  r_.elementwise.sink_gradient(view(step.lse), view(step.delta), sink(step.lse.head, step.lse.heads),
                               r_.lists.rows(step.rows), buffers_.user(Binding::dsink));
}

void Executor::perform(const RowMax& step) {
  r_.elementwise.row_max(view(step.from), view(step.to));
}

template <class Args>
void Executor::fill_inputs(const auto& step, Args& args) const {
  args.slices = step.slices;
  args.device_slices = r_.lists.on_device(step.slices);
  args.q = view(step.q);
  args.k = view(step.k);
  args.v = view(step.v);
  args.lse = view(step.lse);
  args.heads = head_map(step.q_head, step.kv_head);
  args.scale = r_.plan.problem.scale;
}

void Executor::perform(const Attend& step) {
  ForwardArgs args;
  fill_inputs(step, args);
  args.acc = view(step.acc);
  args.lse_low = view(step.lse_low);
  args.out = view(step.out);
  if (step.max_logit) args.max_logit = view(step.max_logit).at<float>(0, 0, 0);
  args.init = step.init;
  args.last = step.last;
  r_.kernel.forward(args, r_.context);
}

void Executor::perform(const AttendBackward& step) {
  BackwardArgs args;
  fill_inputs(step, args);
  args.dout = view(step.dout);
  args.delta = view(step.delta);
  args.out = view(step.out);
  args.dq = view(step.dq);
  args.dk = view(step.dk);
  args.dv = view(step.dv);
  args.init_dq = step.init_dq;
  args.init_dkv = step.init_dkv;
  args.deterministic = r_.plan.problem.deterministic;
  r_.kernel.backward(args, r_.context);
}

}  // namespace rotunda
