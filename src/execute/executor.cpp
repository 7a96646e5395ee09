#include "execute/executor.hpp"

#include <fmt/format.h>

#include <string>
#include <type_traits>

#include "base/fail.hpp"
#include "kernel/elementwise/elementwise.hpp"

namespace rotunda {
namespace {

/// A step's lane and name in a trace.
struct Label {
  TraceEvent::Lane lane;
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

Executor::Executor(const ExecutorResources& resources, const Program& program, const BoundBuffers& buffers,
                   std::vector<TraceEvent>* events, std::chrono::steady_clock::time_point epoch)
    : r_(resources), program_(program), buffers_(buffers), events_(events), epoch_(epoch) {
  const Problem& problem = r_.plan.problem;
  if (problem.sink == Sink::none) return;
  sink_.assign(static_cast<std::size_t>(problem.h_q), 0.0F);
  if (problem.sink == Sink::zero) return;
  const TensorView& given = buffers_.user(Binding::sink);
  for (std::int64_t head = 0; given.data != nullptr && head < given.heads(); ++head) {
    sink_[static_cast<std::size_t>(head)] = *given.at<float>(0, 0, head);
  }
}

void Executor::run() {
  using Clock = std::chrono::steady_clock;
  const auto seconds = [&](Clock::time_point t) { return std::chrono::duration<double>(t - epoch_).count(); };
  for (const Step& step : program_.steps) {
    const Clock::time_point begin = Clock::now();
    std::visit([&](const auto& s) { perform(s); }, step);
    const Clock::time_point end = Clock::now();
    const bool waits = std::holds_alternative<Await>(step) || std::holds_alternative<AwaitSent>(step);
    if (waits) exposed_seconds_ += std::chrono::duration<double>(end - begin).count();
    if (events_ == nullptr) continue;
    Label what = label(program_, step);
    events_->push_back({what.lane, std::move(what.name), seconds(begin), seconds(end)});
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

const float* Executor::sink(std::int64_t head) const {
  return sink_.data() + head;
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
  elementwise::fill(view(step.to), static_cast<float>(step.value), r_.threads);
}

void Executor::perform(const Convert& step) {
  elementwise::convert(view(step.from), view(step.to), r_.threads);
}

void Executor::perform(const Add& step) {
  elementwise::add(view(step.from), view(step.to), view(step.low), r_.threads);
}

void Executor::perform(const FillSink& step) {
  elementwise::fill_sink(view(step.lse), sink(step.lse.head), step.rows);
}

void Executor::perform(const Delta& step) {
  elementwise::row_dot(view(step.out), view(step.dout), view(step.delta), r_.threads);
}

void Executor::perform(const Finish& step) {
  const elementwise::RowState state{view(step.acc), view(step.lse), view(step.lse_low)};
  elementwise::finish_with_sink(state, view(step.out), sink(step.head), step.rows, r_.threads);
}

void Executor::perform(const SinkGradient& step) {
  const TensorView& dsink = buffers_.user(Binding::dsink);
  std::vector<float> sum(sink_.size());
  elementwise::sink_gradient(view(step.lse), view(step.delta), sink(0), step.rows, sum.data());
  for (std::size_t head = 0; head < sum.size(); ++head) *dsink.at<float>(0, 0, static_cast<int>(head)) = sum[head];
}

void Executor::perform(const RowMax& step) {
  elementwise::row_max(view(step.from), view(step.to));
}

void Executor::perform(const Attend& step) {
  ForwardArgs args;
  args.slices = step.slices;
  args.q = view(step.q);
  args.k = view(step.k);
  args.v = view(step.v);
  args.acc = view(step.acc);
  args.lse = view(step.lse);
  args.lse_low = view(step.lse_low);
  args.out = view(step.out);
  if (step.max_logit) args.max_logit = view(step.max_logit).at<float>(0, 0, 0);
  args.heads = head_map(step.q_head, step.kv_head);
  args.scale = r_.plan.problem.scale;
  args.init = step.init;
  args.last = step.last;
  r_.kernel.forward(args, context());
}

void Executor::perform(const AttendBackward& step) {
  BackwardArgs args;
  args.slices = step.slices;
  args.q = view(step.q);
  args.k = view(step.k);
  args.v = view(step.v);
  args.dout = view(step.dout);
  args.lse = view(step.lse);
  args.delta = view(step.delta);
  args.dq = view(step.dq);
  args.dk = view(step.dk);
  args.dv = view(step.dv);
  args.heads = head_map(step.q_head, step.kv_head);
  args.scale = r_.plan.problem.scale;
  args.init_dq = step.init_dq;
  args.init_dkv = step.init_dkv;
  r_.kernel.backward(args, context());
}

}  // namespace rotunda
