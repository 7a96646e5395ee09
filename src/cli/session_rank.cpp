#include <numeric>

#include "cli/session_runner.hpp"

namespace rotunda::cli {
namespace {

double seconds_between(SessionClock::time_point from, SessionClock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

/// CUDA devices of the ranks, or none where the plan runs on the CPU. @throws Error unsupported
std::vector<int> devices_of(const SessionSetup& setup) {
  Problem problem = setup.problem;
  normalize(problem);
  if (device_kind(problem, setup.options) == Device::Kind::cpu) return {};
  if (!setup.options.devices.empty()) return setup.options.devices;
  std::vector<int> all(static_cast<std::size_t>(cuda_device_count()));
  std::iota(all.begin(), all.end(), 0);
  return all;
}

/// Values of heads.
void copy_values(const TensorView& from, const TensorView& to) {
  for (std::int64_t head = 0; head < to.heads(); ++head) *to.at<float>(0, 0, head) = *from.at<float>(0, 0, head);
}

}  // namespace

RankWork::RankWork(const SessionSetup& setup, Transport& transport, const Tensors& inputs,
                   SessionClock::time_point born)
    : setup_(setup),
      report_{agree_on_plan(setup.problem, setup.options, transport), {}, {}, {}},
      stream_(report_.plan->device),
      attention_(report_.plan, transport) {
  scatter_inputs(inputs);
  offset_ = seconds_between(born, SessionClock::now());
  attention_.set_tracing(setup.tracing);
}

std::vector<double> RankWork::perform(const Task& task) {
  const Device device = report_.plan->device;
  std::vector<Moment> moments;
  moments.emplace_back(device, stream_.get());
  for (int i = 0; i < task.times; ++i) {
    enqueue(task, stream_.get());
    moments.emplace_back(device, stream_.get());
  }
  synchronize(device, stream_.get());
  std::vector<double> seconds;
  for (std::size_t i = 1; i < moments.size(); ++i) seconds.push_back(moments[i].seconds_after(moments[i - 1]));
  if (setup_.tracing) collect_events();
  return seconds;
}

void RankWork::enqueue(const Task& task, Stream stream) {
  if (task.forward) attention_.forward(tensors_.on_device(), stream);
  if (task.forward) report_.forward = attention_.stats();
  if (task.backward) attention_.backward(tensors_.on_device(), stream);
  if (task.backward) report_.backward = attention_.stats();
}

void RankWork::collect_events() {
  report_.events = attention_.events();
  for (TraceEvent& event : report_.events) {
    event.begin += offset_;
    event.end += offset_;
  }
}

void RankWork::scatter_inputs(const Tensors& inputs) {
  const Plan& plan = *report_.plan;
  const RowCounts rows{plan.shard.q.rows(plan.rank), plan.shard.k.rows(plan.rank)};
  const std::vector<TensorKind> given = input_kinds(setup_.problem);
  std::vector<TensorKind> kinds = given;
  for (const TensorKind& kind : output_kinds(setup_.problem)) kinds.push_back(kind);
  tensors_.allocate(setup_.problem, rows, kinds, plan.device);
  for (const TensorKind& kind : given) {
    if (kind.rows == TensorKind::Rows::none) {
      copy_values(inputs.*kind.view, tensors_.on_host().*kind.view);
    } else {
      const TokenMap& map = kind.rows == TensorKind::Rows::q ? plan.shard.q : plan.shard.k;
      scatter(map, plan.rank, inputs.*kind.view, tensors_.on_host().*kind.view);
    }
  }
  tensors_.upload(given);
}

std::vector<std::unique_ptr<Transport>> make_group(const SessionSetup& setup) {
  return make_local_group(setup.ranks, LocalOptions{setup.timeout, {}, devices_of(setup)});
}

void gather_ranks(const Problem& problem, const std::vector<std::unique_ptr<RankWork>>& works, const Tensors& outputs) {
  const std::vector<TensorKind> kinds = output_kinds(problem);
  for (const auto& work : works) {
    const RankTensors& tensors = work->tensors();
    const Plan& plan = *work->report().plan;
    tensors.download(kinds);
    for (const TensorKind& kind : kinds) {
      gather_rank(plan, plan.rank, kind, tensors.on_host().*kind.view, outputs.*kind.view);
    }
  }
}

void gather_rank(const Plan& plan, int rank, const TensorKind& kind, const TensorView& local, const TensorView& whole) {
  if (kind.rows != TensorKind::Rows::none) {
    rotunda::gather(kind.rows == TensorKind::Rows::q ? plan.shard.q : plan.shard.k, rank, local, whole);
    return;
  }
  const bool summed = kind.view == &Tensors::dsink;
  for (std::int64_t head = 0; head < whole.heads(); ++head) {
    const float value = *local.at<float>(0, 0, head);
    float& total = *whole.at<float>(0, 0, head);
    if (rank == 0) total = value;
    if (rank != 0 && summed) total += value;
  }
}

}  // namespace rotunda::cli
