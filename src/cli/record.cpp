#include "cli/record.hpp"

#include <cmath>
#include <cstdio>
#include <filesystem>
#include <set>

#include "base/fail.hpp"
#include "cli/atomic_file.hpp"
#include "cli/build_info.hpp"

namespace rotunda::cli {
namespace {

using nlohmann::ordered_json;

/// Five significant digits; null for what was not measured.
ordered_json rounded(double value) {
  if (value == 0 || !std::isfinite(value)) return nullptr;
  return std::stod(fmt::format("{:.5g}", value));
}

/// Ratios may be 0; only what is not finite has no figure.
ordered_json ratio(double value) {
  if (!std::isfinite(value)) return nullptr;
  return std::stod(fmt::format("{:.4g}", value));
}

/// Devices that take part.
int gpus(const std::vector<RankReport>& reports) {
  std::set<int> devices;
  for (const RankReport& report : reports) devices.insert(report.plan->device.index);
  return static_cast<int>(devices.size());
}

}  // namespace

Record record_of(const std::string& name, const std::string& problem, const Options& options,
                 const std::vector<RankReport>& reports) {
  const Plan& plan = *reports.front().plan;
  Record record;
  record.name = name;
  record.problem = problem;
  record.ranks = plan.ranks;
  record.schedule = to_string(plan.forward_schedule.kind);
  record.backward_schedule = to_string(plan.backward_schedule.kind);
  record.kernel = plan.kernel;
  record.transport = plan.transport;
  record.device = to_string(plan.device.kind);
  if (plan.device.is_cuda()) record.gpus = gpus(reports);
  record.versions = versions();
  if (plan.device.is_cuda()) record.versions["gpu"] = describe(plan.device);
  record.command = options.command_line;
  record.peak_bytes = peak_workspace_bytes(reports);
  record.exposed_ms = exposed_ms(reports);
  return record;
}

void add_grades(Record& record, const std::vector<Grade>& grades) {
  for (const Grade& each : grades) {
    record.err_ratio[each.tensor] = each.ratio;
    if (each.skipped > 0) record.skipped[each.tensor] = each.skipped;
  }
}

ordered_json to_json(const Record& record) {
  ordered_json errors = ordered_json::object();
  for (const auto& [tensor, value] : record.err_ratio) errors[tensor] = ratio(value);
  ordered_json baselines = ordered_json::object();
  for (const auto& [name, r] : record.baselines) {
    baselines[name] = {{"fwd", rounded(r.fwd)}, {"bwd", rounded(r.bwd)}, {"both", rounded(r.both)}};
  }
  ordered_json json{{"name", record.name},
                    {"problem", record.problem},
                    {"ranks", record.ranks},
                    {"gpus", record.gpus},
                    {"schedule", record.schedule},
                    {"backward_schedule", record.backward_schedule},
                    {"kernel", record.kernel},
                    {"transport", record.transport},
                    {"device", record.device},
                    {"versions", record.versions},
                    {"date", today()},
                    {"command", record.command},
                    {"fwd_ms", rounded(1e3 * record.times.forward)},
                    {"bwd_ms", rounded(1e3 * record.times.backward)},
                    {"both_ms", rounded(1e3 * record.times.both)},
                    {"fwd_tflops", rounded(record.fwd_tflops)},
                    {"bwd_tflops", rounded(record.bwd_tflops)},
                    {"peak_bytes", record.peak_bytes},
                    {"exposed_ms", std::stod(fmt::format("{:.5g}", record.exposed_ms))},
                    {"err_ratio", errors},
                    {"baselines", baselines}};
  if (!record.skipped.empty()) json["skipped"] = record.skipped;
  if (!record.verified.empty()) json["verified"] = record.verified;
  if (record.graph) json["graph"] = true;
  return json;
}

ordered_json to_json(const Cost& cost) {
  return {{"flops", cost.flops},
          {"pairs", cost.pairs},
          {"bytes_sent", cost.bytes_sent},
          {"bytes_received", cost.bytes_received},
          {"exposed_bytes", cost.exposed_bytes},
          {"messages", cost.messages},
          {"workspace_bytes", cost.workspace_bytes}};
}

ordered_json json_array(const std::string& path) {
  ordered_json array = ordered_json::array();
  std::error_code ignored;
  if (std::filesystem::is_regular_file(path, ignored)) {
    const std::string text = read_text(path);
    if (text.find_first_not_of(" \t\r\n") != std::string::npos) array = ordered_json::parse(text, nullptr, false);
    if (!array.is_array()) fail(ErrorKind::bad_input, "--json: {} holds no JSON array to append to", path);
  }
  return array;
}

void append_json(const std::string& path, const std::vector<ordered_json>& values) {
  const FolderLock lock(path);
  ordered_json array = json_array(path);
  for (const ordered_json& value : values) array.push_back(value);
  write_text(path, array.dump(1, ' ', false, ordered_json::error_handler_t::replace) + "\n");
}

double forward_flops(const Problem& problem) {
  return flops_per_pair(problem) * problem.h_q * count_pairs(mask_slices(problem));
}

}  // namespace rotunda::cli
