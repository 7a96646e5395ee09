// This process as one rank of a job: every process has the same inputs and runs the same commands.
#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>

#include "base/fail.hpp"
#include "cli/session_runner.hpp"
#include "cli/setup.hpp"

namespace rotunda::cli {
namespace {

using nlohmann::json;

json to_json(const RunStats& stats) {
  return {stats.bytes_sent, stats.bytes_received, stats.workspace_bytes, stats.seconds, stats.exposed_seconds};
}

RunStats stats_of(const json& values) {
  RunStats stats;
  stats.bytes_sent = values.at(0);
  stats.bytes_received = values.at(1);
  stats.workspace_bytes = values.at(2);
  stats.seconds = values.at(3);
  stats.exposed_seconds = values.at(4);
  return stats;
}

/// A report as text, without the plan.
std::string to_text(const RankReport& report, const std::vector<double>& seconds) {
  json events = json::array();
  for (const TraceEvent& event : report.events) {
    events.push_back({static_cast<int>(event.lane), event.name, event.begin, event.end});
  }
  return json{{"device", report.plan->device.index},
              {"forward", to_json(report.forward)},
              {"backward", to_json(report.backward)},
              {"events", events},
              {"seconds", seconds}}
      .dump();
}

/// The device of this rank: none where the transport moves host memory, else as asked for, or by its number on its
/// host.
Device device_of(const SessionSetup& setup) {
  if (const auto asked = asked_transport(setup.options); asked && asked->memory == Device::Kind::cpu) return {};
  const std::vector<int>& devices = setup.options.devices;
  if (!devices.empty()) {
    return cuda_device(devices[static_cast<std::size_t>(setup.process->rank) % devices.size()]);
  }
  return cuda_device(setup.process->local_rank % std::max(1, cuda_device_count()));
}

class Process final : public Runner {
 public:
  Process(const SessionSetup& setup, const Tensors& inputs)
      : setup_(setup),
        transport_(make_process_transport(setup.options.transport,
                                          {*setup.process, setup.timeout, device_of(setup), Fault{}})),
        work_(make_work(inputs)) {
    share({});
  }

  std::vector<double> run(const Task& task) override {
    return guarded([&] {
      (void)transport_->all_gather_text("");  // all start together
      return share(work_->perform(task));
    });
  }

  void gather(const Tensors& outputs) override {
    guarded([&] {
      const std::vector<TensorKind> kinds = output_kinds(setup_.problem);
      work_->tensors().download(kinds);
      for (const TensorKind& kind : kinds) gather(kind, outputs.*kind.view);
      return 0;
    });
  }

  [[nodiscard]] const std::vector<RankReport>& reports() const override { return reports_; }
  [[nodiscard]] std::string from_first(const std::string& text) override {
    return guarded([&] { return transport_->all_gather_text(text).front(); });
  }

 private:
  /// What fails here must not leave the others waiting.
  template <class Body>
  auto guarded(Body&& body) -> decltype(body()) {
    try {
      return body();
    } catch (const std::exception& error) {
      transport_->abort(error.what());
      throw;
    }
  }

  std::unique_ptr<RankWork> make_work(const Tensors& inputs) {
    return guarded([&] { return std::make_unique<RankWork>(setup_, *transport_, inputs, SessionClock::now()); });
  }

  /// Everybody's reports to everybody; the greatest of the seconds.
  std::vector<double> share(const std::vector<double>& mine) {
    const std::vector<std::string> texts = transport_->all_gather_text(to_text(work_->report(), mine));
    std::vector<double> slowest = mine;
    reports_.assign(texts.size(), work_->report());
    for (std::size_t rank = 0; rank < texts.size(); ++rank) {
      const json values = json::parse(texts[rank]);
      RankReport& report = reports_[rank];
      auto plan = std::make_shared<Plan>(*work_->report().plan);
      plan->rank = static_cast<int>(rank);
      plan->device.index = values.at("device");
      report.plan = plan;
      report.forward = stats_of(values.at("forward"));
      report.backward = stats_of(values.at("backward"));
      report.events.clear();
      for (const json& event : values.at("events")) {
        report.events.push_back({static_cast<TraceEvent::Lane>(event.at(0).get<int>()), event.at(1).get<std::string>(),
                                 event.at(2).get<double>(), event.at(3).get<double>()});
      }
      const auto seconds = values.at("seconds").get<std::vector<double>>();
      for (std::size_t i = 0; i < slowest.size(); ++i) slowest[i] = std::max(slowest[i], seconds.at(i));
    }
    return slowest;
  }

  void gather(const TensorKind& kind, const TensorView& whole) {
    const Plan& plan = *work_->report().plan;
    const TensorView& mine = work_->tensors().on_host().*kind.view;
    const auto bytes = static_cast<std::size_t>(mine.bytes());
    const auto texts = transport_->all_gather_text(std::string(static_cast<const char*>(mine.data), bytes));
    for (int rank = 0; rank < setup_.ranks; ++rank) {
      TensorStore store;
      const RowCounts rows{plan.shard.q.rows(rank), plan.shard.k.rows(rank)};
      store.allocate(setup_.problem, rows, {kind});
      const std::string& text = texts[static_cast<std::size_t>(rank)];
      const TensorView& local = store.views.*kind.view;
      if (!text.empty()) std::memcpy(local.data, text.data(), text.size());
      gather_rank(plan, rank, kind, local, whole);
    }
  }

  const SessionSetup setup_;
  std::unique_ptr<Transport> transport_;
  std::unique_ptr<RankWork> work_;
  std::vector<RankReport> reports_;
};

}  // namespace

std::unique_ptr<Runner> run_one_process(const SessionSetup& setup, const Tensors& inputs) {
  return std::make_unique<Process>(setup, inputs);
}

}  // namespace rotunda::cli
