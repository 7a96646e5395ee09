// The tour: real Q, K, V of language models, every schedule, against float64.
#include <algorithm>
#include <optional>

#include "base/fail.hpp"
#include "cli/atomic_file.hpp"
#include "cli/build_info.hpp"
#include "cli/commands.hpp"
#include "cli/drawing.hpp"
#include "cli/inputs.hpp"
#include "cli/picture.hpp"
#include "cli/record.hpp"
#include "cli/setup.hpp"
#include "cli/table.hpp"
#include "cli/terminal.hpp"
#include "cli/timing.hpp"
#include "cli/trace.hpp"
#include "rotunda/oracle.hpp"

namespace rotunda::cli {
namespace {

struct Pair {
  ScheduleKind forward;
  std::optional<ScheduleKind> backward;  ///< empty: the plan's choice
};

/// The pairs that the flags leave open: every schedule, or the one asked for, with the backward asked for or its own;
/// where nothing was asked for, also two pairs whose backward differs.
std::vector<Pair> pairs_of(const PlanOptions& plan) {
  std::vector<Pair> pairs;
  for (const ScheduleKind kind : kScheduleKinds) {
    if (plan.schedule.value_or(kind) != kind) continue;
    pairs.push_back({kind, plan.mixes ? plan.backward_schedule : plan.backward_schedule.value_or(kind)});
  }
  if (!plan.schedule && !plan.backward_schedule && !plan.mixes) {
    pairs.push_back({ScheduleKind::all_gather, ScheduleKind::p2p});
    pairs.push_back({ScheduleKind::p2p, ScheduleKind::a2a});
  }
  return pairs;
}

/// What one schedule did.
struct Outcome {
  std::vector<RankReport> reports;
  Times times;
  std::vector<Grade> grades;
};

class Tour {
 public:
  Tour(const Options& options, const std::string& file) : options_(options), inputs_(read_inputs(file, std::nullopt)) {
    Progress progress(options_, "float64 oracle");
    want_ = oracle(inputs_.problem, inputs_.tensors.views, cores(), progress.callback());
  }

  [[nodiscard]] std::string heading() const {
    const auto& metadata = inputs_.file->header().metadata;
    const auto source = metadata.find("source");
    return fmt::format("{}\n{}\n", source == metadata.end() ? inputs_.file->path() : source->second,
                       inputs_.problem_text);
  }

  void run() {
    Progress progress(options_, "schedules");
    const std::vector<Pair> pairs = pairs_of(options_.plan);
    for (std::size_t i = 0; i < pairs.size(); ++i) {
      progress.update(static_cast<double>(i) / static_cast<double>(pairs.size()));
      outcomes_.push_back(try_pair(pairs[i]));
    }
  }

  [[nodiscard]] std::string table() const {
    std::vector<std::string> header{"forward", "backward", "shard"};
    for (const Grade& each : outcomes_.front().grades) header.push_back(each.tensor);
    for (const char* name : {"fwd ms", "bwd ms", "GFLOP/s", "moved", "workspace"}) header.emplace_back(name);
    Table table(header, 3);
    for (const Outcome& outcome : outcomes_) table.add(row(outcome));
    return table.text();
  }

  [[nodiscard]] const std::vector<Outcome>& outcomes() const { return outcomes_; }
  [[nodiscard]] const Inputs& inputs() const { return inputs_; }

 private:
  Outcome try_pair(const Pair& pair) {
    Options options = options_;
    options.plan.schedule = pair.forward;
    options.plan.backward_schedule = pair.backward;
    // Of a tour through all schedules, --inner is for those that have one.
    const bool has_inner =
        pair.forward == ScheduleKind::a2a_p2p || pair.backward.value_or(ScheduleKind::a2a_p2p) == ScheduleKind::a2a_p2p;
    if (!options_.plan.schedule && !has_inner) options.plan.inner = 0;
    options.trace = "on";  // events are kept; which ones are written is decided later
    const bool grad = inputs_.problem.grad;
    Session session(session_setup(options, inputs_.problem), inputs_.tensors.views);
    TensorStore outputs;
    outputs.allocate(inputs_.problem, whole_rows(inputs_.problem), output_kinds(inputs_.problem));
    std::vector<double> forward, backward;
    for (int i = 0; i < 3; ++i) {
      forward.push_back(session.forward());
      if (grad) backward.push_back(session.backward());
    }
    session.gather(outputs.views);
    return {session.reports(), {median(forward), median(backward), 0}, grade(inputs_.problem, want_, outputs.views)};
  }

  [[nodiscard]] std::vector<std::string> row(const Outcome& outcome) const {
    const Plan& plan = *outcome.reports.front().plan;
    std::vector<std::string> cells{to_string(plan.forward_schedule.kind), to_string(plan.backward_schedule.kind),
                                   to_string(plan.shard.kind)};
    for (const Grade& each : outcome.grades) {
      cells.push_back(fmt::format("{:.2f}{}", each.ratio, each.passed() ? "" : " FAILED"));
    }
    const double flops = forward_flops(inputs_.problem) * (inputs_.problem.grad ? 1 + kBackwardFlops : 1);
    const double seconds = outcome.times.forward + outcome.times.backward;
    cells.push_back(figure(1e3 * outcome.times.forward));
    cells.push_back(figure(1e3 * outcome.times.backward));
    cells.push_back(figure(seconds > 0 ? flops / seconds / 1e9 : 0));
    cells.push_back(bytes_text(bytes_moved(outcome.reports)));
    cells.push_back(bytes_text(peak_workspace_bytes(outcome.reports)));
    return cells;
  }

  const Options& options_;
  Inputs inputs_;
  OracleResult want_;
  std::vector<Outcome> outcomes_;
};

std::vector<std::string> files(const Options& options) {
  if (!options.in.empty()) return {options.in};
  std::vector<std::string> found;
  for (const char* name : {"smollm2_layer29.safetensors", "minilm_packed.safetensors"}) {
    const std::string path = find_resource(std::string("examples/data/") + name);
    if (path.empty())
      fail(ErrorKind::bad_input, "the demo's data examples/data/{} is not there; name a file with --in", name);
    found.push_back(path);
  }
  return found;
}

void write_pictures(const Options& options, const Tour& tour) {
  const Outcome& first = tour.outcomes().front();
  std::vector<std::shared_ptr<const Plan>> plans;
  for (const RankReport& report : first.reports) plans.push_back(report.plan);
  write_text(options.svg, draw_plan(plans));
  write_trace(options.trace, first.reports);
  print(options, fmt::format("{} in one picture: {}\nits trace, for ui.perfetto.dev: {}\n",
                             to_string(plans.front()->forward_schedule.kind), options.svg, options.trace));
}

void append_records(const Options& options, const Tour& tour) {
  std::vector<nlohmann::ordered_json> records;
  for (const Outcome& outcome : tour.outcomes()) {
    Record record = record_of("demo", tour.inputs().problem_text, options, outcome.reports);
    add_grades(record, outcome.grades);
    records.push_back(to_json(record));
  }
  append_json(options.json, records);
}

}  // namespace

int demo(const Options& options) {
  if (const auto asked = asked_transport(options.plan); asked && asked->processes) {
    fail(ErrorKind::unsupported,
         "--transport is {}, whose ranks are processes, and the tour's are threads; allowed here: auto, local",
         asked->name);
  }
  std::vector<std::unique_ptr<Tour>> tours;
  std::size_t runs = 0, failed = 0;
  double worst = 0;
  for (const std::string& file : files(options)) {
    tours.push_back(std::make_unique<Tour>(options, file));
    Tour& tour = *tours.back();
    print(options, tour.heading());
    tour.run();
    const Plan& plan = *tour.outcomes().front().reports.front().plan;
    if (tours.size() == 1) warn_of_idle_flags(options, plan.problem, &plan);
    print(options, fmt::format("{} of {}, kernel {}; tokens by rank:\n{}\n", counted(plan.ranks, "rank"),
                               counted(plan.threads, "thread"), plan.kernel, shard_picture(plan.problem, plan.shard)));
    print(options,
          "error / naive error (at most 2; lse: of what is allowed, at most 1), medians of 3\n" + tour.table() + "\n");
    for (const Outcome& outcome : tour.outcomes()) {
      ++runs;
      bool passed = true;
      for (const Grade& each : outcome.grades) {
        passed = passed && each.passed();
        worst = std::max(worst, each.ratio / each.bar);
      }
      if (!passed) ++failed;
    }
    if (!options.json.empty()) append_records(options, tour);
  }
  print(options,
        fmt::format("{} of {} runs are as exact as attention on one device (worst: {:.0f} % of what is allowed)\n",
                    runs - failed, runs, 100 * worst));
  write_pictures(options, *tours.front());
  return failed == 0 ? 0 : 1;
}

}  // namespace rotunda::cli
