#include "call.hpp"

#include <fmt/format.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <string>

#include "dlpack.hpp"
#include "group.hpp"
#include "rotunda/attention.hpp"
#include "rotunda/error.hpp"
#include "rotunda/plan.hpp"

namespace rotunda::python {

namespace nb = nanobind;

namespace {

struct Options {
  std::string schedule, backward_schedule, shard, shard_for, kernel;
  int inner = 0, threads = 0;
  std::int64_t chunk_size = 0;
};

PlanOptions plan_options(const Options& options) {
  PlanOptions result;
  if (!options.schedule.empty()) result.schedule = parse_schedule_kind(options.schedule);
  if (!options.backward_schedule.empty()) result.backward_schedule = parse_schedule_kind(options.backward_schedule);
  if (!options.shard.empty()) result.shard = parse_shard_kind(options.shard);
  result.shard_for = options.shard_for;
  result.kernel = options.kernel;
  result.inner = options.inner;
  result.threads = options.threads;
  result.chunk_size = options.chunk_size;
  return result;
}

/// A cudaStream_t as Python has it: a number.
Stream stream_of(std::uintptr_t number) {
  return {reinterpret_cast<void*>(number)};  // NOLINT(performance-no-int-to-ptr)
}

class Call {
 public:
  /// Collective: all ranks agree on the plan, or get an error.
  Call(std::shared_ptr<Group> group, const std::string& problem, const Options& options) : group_(std::move(group)) {
    group_->run([&](Transport& transport) {
      plan_ = agree_on_plan(parse(problem, transport), parse(options, transport), transport);
      attention_ = std::make_unique<Attention>(plan_, transport);
    });
  }

  ~Call() {
    const nb::gil_scoped_release release;  // a device may have to finish its work first
    attention_.reset();
  }

  // NOLINTNEXTLINE(readability-function-size): the tensors of a pass are this many
  void forward(nb::handle q, nb::handle k, nb::handle v, nb::handle sink, nb::handle out, nb::handle lse,
               nb::handle max_logit, nb::handle workspace, std::uintptr_t stream) {
    Importer from = importer();
    const Tensors tensors = imported([&](Tensors& to) {
      take_inputs(from, to, q, k, v, sink);
      take_results(from, to, out, lse, workspace);
      to.max_logit = from.heads(max_logit, "max_logit");
    });
    group_->run([&](Transport&) { attention_->forward(tensors, stream_of(stream)); });
  }

  // NOLINTNEXTLINE(readability-function-size): as above
  void backward(nb::handle q, nb::handle k, nb::handle v, nb::handle sink, nb::handle out, nb::handle lse,
                nb::handle dout, nb::handle minus_dlse, nb::handle dq, nb::handle dk, nb::handle dv, nb::handle dsink,
                nb::handle workspace, std::uintptr_t stream) {
    Importer from = importer();
    const Tensors tensors = imported([&](Tensors& to) {
      take_inputs(from, to, q, k, v, sink);
      take_results(from, to, out, lse, workspace);
      to.dout = from.input(dout, "dout");
      to.minus_dlse = from.rows(minus_dlse, "dlse");
      to.dq = from.tensor(dq, "dq");
      to.dk = from.tensor(dk, "dk");
      to.dv = from.tensor(dv, "dv");
      to.dsink = from.heads(dsink, "dsink");
    });
    group_->run([&](Transport&) { attention_->backward(tensors, stream_of(stream)); });
  }

  [[nodiscard]] std::int64_t workspace_bytes() const { return attention_->workspace_bytes(); }
  [[nodiscard]] const Plan& plan() const { return *plan_; }

 private:
  /// What can't be parsed is told to the others by the agreement that they wait in.
  static Problem parse(const std::string& text, Transport& transport) {
    return guarded(transport, [&] { return parse_problem(text); });
  }
  static PlanOptions parse(const Options& options, Transport& transport) {
    return guarded(transport, [&] { return plan_options(options); });
  }
  template <class Body>
  static auto guarded(Transport& transport, Body&& body) -> decltype(body()) {
    try {
      return body();
    } catch (const std::exception& error) {
      transport.abort(error.what());
      throw;
    }
  }

  [[nodiscard]] Importer importer() const { return {plan_->problem.layout, plan_->device, {}}; }

  /// The tensors that fill(tensors) takes. One that can't be used ends the call on every rank: the others would wait
  /// for this one.
  template <class Fill>
  Tensors imported(Fill&& fill) const {
    try {
      Tensors tensors;
      fill(tensors);
      return tensors;
    } catch (const Error& error) {
      const nb::gil_scoped_release release;
      group_->transport().abort(error.what());
      throw;
    }
  }

  static void take_inputs(Importer& from, Tensors& to, nb::handle q, nb::handle k, nb::handle v, nb::handle sink) {
    to.q = from.input(q, "q");
    to.k = from.input(k, "k");
    to.v = from.input(v, "v");
    to.sink = from.heads(sink, "sink");
  }
  static void take_results(const Importer& from, Tensors& to, nb::handle out, nb::handle lse, nb::handle workspace) {
    to.out = from.tensor(out, "out");
    to.lse = from.rows(lse, "lse");
    to.workspace = from.memory(workspace, "workspace");
  }

  std::shared_ptr<Group> group_;
  std::shared_ptr<const Plan> plan_;
  std::unique_ptr<Attention> attention_;
};

std::string explain(const Call& call) {
  const Plan& plan = call.plan();
  std::string text = fmt::format("{}\nplan: {}\n", to_text(plan.problem), plan.summary());
  for (const Refusal& refusal : plan.refusals) text += fmt::format("not {}: {}\n", refusal.what, refusal.reason);
  text += "\nforward\n" + to_text(plan.forward);
  if (plan.backward) text += "\nbackward\n" + to_text(*plan.backward);
  return text;
}

}  // namespace

void bind_call(nb::module_& module) {
  nb::class_<Call>(module, "Call")
      .def(
          "__init__",
          [](Call* self, std::shared_ptr<Group> group, const std::string& problem, const std::string& schedule,
             const std::string& backward_schedule, const std::string& shard, const std::string& shard_for,
             const std::string& kernel, int inner, int threads, std::int64_t chunk_size) {
            new (self) Call(std::move(group), problem,
                            Options{schedule, backward_schedule, shard, shard_for, kernel, inner, threads, chunk_size});
          },
          nb::arg("group"), nb::arg("problem"), nb::kw_only(), nb::arg("schedule") = "",
          nb::arg("backward_schedule") = "", nb::arg("shard") = "", nb::arg("shard_for") = "", nb::arg("kernel") = "",
          nb::arg("inner") = 0, nb::arg("threads") = 0, nb::arg("chunk_size") = 0)
      .def("forward", &Call::forward, nb::arg(), nb::arg(), nb::arg(), nb::arg().none(), nb::arg(), nb::arg(),
           nb::arg().none(), nb::arg().none(), nb::arg())
      .def("backward", &Call::backward, nb::arg(), nb::arg(), nb::arg(), nb::arg().none(), nb::arg(), nb::arg(),
           nb::arg(), nb::arg().none(), nb::arg(), nb::arg(), nb::arg(), nb::arg().none(), nb::arg().none(), nb::arg())
      .def_prop_ro("workspace_bytes", &Call::workspace_bytes)
      .def_prop_ro("summary", [](const Call& call) { return call.plan().summary(); })
      .def_prop_ro("problem", [](const Call& call) { return to_text(call.plan().problem); })
      .def("explain", &explain);
}

}  // namespace rotunda::python
