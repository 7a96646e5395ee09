#include "cli/session.hpp"

#include <algorithm>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <numeric>
#include <thread>

#include "base/fail.hpp"
#include "cli/rank_tensors.hpp"

namespace rotunda::cli {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_between(Clock::time_point from, Clock::time_point to) {
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

struct Task {
  bool forward = false, backward = false;
  int times = 1;
};

}  // namespace

/// The ranks' threads wait for a task number beyond the last one they did. Whoever fails marks the session, so that
/// ranks that wait for a task leave too; those that wait for a peer learn of it from the transport.
struct Session::Impl {
  SessionSetup setup;
  Clock::time_point born = Clock::now();
  std::vector<RankTensors> local;
  std::vector<RankReport> reports;
  std::vector<std::vector<double>> seconds;  ///< by rank: of each run of the task at hand

  std::mutex mutex;
  std::condition_variable wake, done;
  Task task;
  int number = 0;    ///< of the task at hand; 0 is the set-up
  int finished = 0;  ///< ranks that have done it
  bool leaving = false, ended = false;
  std::exception_ptr error;
  std::thread driver;

  void drive(const Tensors& inputs) {
    try {
      auto group = make_local_group(setup.ranks, LocalOptions{setup.timeout, {}, devices_of(setup)});
      run_ranks(group, [&](Transport& transport) { serve(transport, inputs); });
    } catch (...) {
      error = std::current_exception();
    }
    const std::scoped_lock lock(mutex);
    ended = true;
    done.notify_all();
  }

  void serve(Transport& transport, const Tensors& inputs) {
    try {
      work(transport, inputs);
    } catch (...) {
      const std::scoped_lock lock(mutex);
      leaving = true;
      wake.notify_all();
      throw;
    }
  }

  void work(Transport& transport, const Tensors& inputs) {
    const int rank = transport.rank();
    const auto at = static_cast<std::size_t>(rank);
    RankReport& report = reports[at];
    report.plan = agree_on_plan(setup.problem, setup.options, transport);
    const Device device = report.plan->device;
    const OwnedStream stream(device);
    scatter_inputs(rank, *report.plan, inputs);
    Attention attention(report.plan, transport);
    const double offset = seconds_between(born, Clock::now());
    attention.set_tracing(setup.tracing);
    for (int next = 1; finish_and_wait(next); ++next) {
      std::vector<Moment> moments;
      moments.emplace_back(device, stream.get());
      for (int i = 0; i < task.times; ++i) {
        if (task.forward) attention.forward(local[at].on_device(), stream.get());
        if (task.forward) report.forward = attention.stats();
        if (task.backward) attention.backward(local[at].on_device(), stream.get());
        if (task.backward) report.backward = attention.stats();
        moments.emplace_back(device, stream.get());
      }
      synchronize(device, stream.get());
      seconds[at].clear();
      for (std::size_t i = 1; i < moments.size(); ++i) seconds[at].push_back(moments[i].seconds_after(moments[i - 1]));
      if (setup.tracing) collect_events(attention, offset, report);
    }
  }

  static void collect_events(const Attention& attention, double offset, RankReport& report) {
    report.events = attention.events();
    for (TraceEvent& event : report.events) {
      event.begin += offset;
      event.end += offset;
    }
  }

  void scatter_inputs(int rank, const Plan& plan, const Tensors& inputs) {
    RankTensors& tensors = local[static_cast<std::size_t>(rank)];
    const RowCounts rows{plan.shard.q.rows(rank), plan.shard.k.rows(rank)};
    const std::vector<TensorKind> given = input_kinds(setup.problem);
    std::vector<TensorKind> kinds = given;
    for (const TensorKind& kind : output_kinds(setup.problem)) kinds.push_back(kind);
    tensors.allocate(setup.problem, rows, kinds, plan.device);
    for (const TensorKind& kind : given) {
      if (kind.rows == TensorKind::Rows::none) {
        copy_values(inputs.*kind.view, tensors.on_host().*kind.view);
      } else {
        const TokenMap& map = kind.rows == TensorKind::Rows::q ? plan.shard.q : plan.shard.k;
        scatter(map, rank, inputs.*kind.view, tensors.on_host().*kind.view);
      }
    }
    tensors.upload(given);
  }

  /// Reports the task before `next` as done and waits for `next`; false: leave.
  bool finish_and_wait(int next) {
    std::unique_lock lock(mutex);
    if (++finished == setup.ranks) done.notify_all();
    wake.wait(lock, [&] { return leaving || number >= next; });
    return !leaving;
  }

  void wait_for_ranks() {
    {
      std::unique_lock lock(mutex);
      done.wait(lock, [&] { return ended || finished == setup.ranks; });
      if (!ended) return;
    }
    driver.join();
    if (error) std::rethrow_exception(error);
    fail(ErrorKind::internal, "the ranks left without a result");
  }

  std::vector<double> run(Task next) {
    {
      const std::scoped_lock lock(mutex);
      if (ended) fail(ErrorKind::internal, "a session was used after it had failed");
      task = next;
      finished = 0;
      ++number;
      wake.notify_all();
    }
    wait_for_ranks();
    std::vector<double> slowest = seconds.front();
    for (const auto& of_rank : seconds) {
      for (std::size_t i = 0; i < slowest.size(); ++i) slowest[i] = std::max(slowest[i], of_rank[i]);
    }
    return slowest;
  }
};

Session::Session(const SessionSetup& setup, const Tensors& inputs) : impl_(std::make_unique<Impl>()) {
  impl_->setup = setup;
  const auto ranks = static_cast<std::size_t>(setup.ranks);
  impl_->local.resize(ranks);
  impl_->reports.resize(ranks);
  impl_->seconds.resize(ranks);
  impl_->driver = std::thread([this, &inputs] { impl_->drive(inputs); });
  impl_->wait_for_ranks();
}

Session::~Session() {
  if (!impl_->driver.joinable()) return;
  {
    const std::scoped_lock lock(impl_->mutex);
    impl_->leaving = true;
    impl_->wake.notify_all();
  }
  impl_->driver.join();
}

double Session::forward() {
  return forward(1).front();
}
double Session::backward() {
  return backward(1).front();
}
double Session::both() {
  return both(1).front();
}
std::vector<double> Session::forward(int times) {
  return impl_->run({true, false, times});
}
std::vector<double> Session::backward(int times) {
  return impl_->run({false, true, times});
}
std::vector<double> Session::both(int times) {
  return impl_->run({true, true, times});
}

const std::vector<RankReport>& Session::reports() const {
  return impl_->reports;
}

void Session::gather(const Tensors& outputs) const {
  for (const RankTensors& tensors : impl_->local) tensors.download(output_kinds(impl_->setup.problem));
  for (const TensorKind& kind : output_kinds(impl_->setup.problem)) {
    const TensorView& whole = outputs.*kind.view;
    for (int rank = 0; rank < impl_->setup.ranks; ++rank) {
      const TensorView& local = impl_->local[static_cast<std::size_t>(rank)].on_host().*kind.view;
      if (kind.rows != TensorKind::Rows::none) {
        const Shard& shard = plan().shard;
        rotunda::gather(kind.rows == TensorKind::Rows::q ? shard.q : shard.k, rank, local, whole);
        continue;
      }
      const bool summed = kind.view == &Tensors::dsink;
      for (std::int64_t head = 0; head < whole.heads(); ++head) {
        const float value = *local.at<float>(0, 0, head);
        float& total = *whole.at<float>(0, 0, head);
        if (rank == 0) total = value;
        if (rank != 0 && summed) total += value;
      }
    }
  }
}

std::int64_t peak_workspace_bytes(const std::vector<RankReport>& reports) {
  std::int64_t most = 0;
  for (const RankReport& report : reports) {
    most = std::max({most, report.forward.workspace_bytes, report.backward.workspace_bytes});
  }
  return most;
}

std::int64_t bytes_moved(const std::vector<RankReport>& reports) {
  std::int64_t sum = 0;
  for (const RankReport& report : reports) sum += report.forward.bytes_sent + report.backward.bytes_sent;
  return sum;
}

double exposed_ms(const std::vector<RankReport>& reports) {
  double most = 0;
  for (const RankReport& report : reports) {
    most = std::max(most, report.forward.exposed_seconds + report.backward.exposed_seconds);
  }
  return 1e3 * most;
}

}  // namespace rotunda::cli
