#include "cli/peers.hpp"

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/fail.hpp"
#include "cli/build_info.hpp"
#include "cli/options.hpp"
#include "cli/process.hpp"

namespace rotunda::cli {
namespace {

const std::vector<std::string>& known_baselines() {
  static const std::vector<std::string> names{"ideal",      "ideal_same_kernel",
                                              "cudnn",      "torch_sdpa",
                                              "torch_flex", "torch_cp",
                                              "torch_cpu",  "fa3",
                                              "fa4",        "ffpa",
                                              "frost",      "te"};
  return names;
}

std::string peer_path(const std::string& name) {
  return find_resource("bench/peers/" + name);
}

bool is_python(const std::string& path) {
  std::string line;
  std::ifstream file(path);
  std::getline(file, line);
  return line.starts_with("#!") && line.find("python") != std::string::npos;
}

double seconds_of(const nlohmann::json& result, const char* key) {
  const auto found = result.find(key);
  return found != result.end() && found->is_number() ? found->get<double>() / 1e3 : 0;
}

}  // namespace

std::optional<SchedulePair> schedules_of(const std::string& baseline) {
  const std::size_t slash = baseline.find('/');
  try {
    const ScheduleKind forward = parse_schedule_kind(baseline.substr(0, slash));
    const bool mixed = slash != std::string::npos;
    return SchedulePair{forward, mixed ? parse_schedule_kind(baseline.substr(slash + 1)) : forward};
  } catch (const Error&) {
    return std::nullopt;
  }
}

void check_baseline(const std::string& name) {
  if (!is_peer(name)) return;
  const auto& known = known_baselines();
  const bool plain = !name.empty() && name.find_first_of("/.") == std::string::npos;
  if (plain && !peer_path(name).empty()) return;
  if (std::find(known.begin(), known.end(), name) == known.end()) {
    fail(ErrorKind::bad_input,
         "--baseline names '{}', allowed are {}, the programs in bench/peers, and schedules such as p2p or p2p/a2a{}",
         name, fmt::join(known, ", "), suggestion(name, known));
  }
  fail(ErrorKind::unsupported, "--baseline {}: there is no program bench/peers/{} in this copy", name, name);
}

PeerResult run_peer(const std::string& name, const std::string& python, const PeerRequest& request) {
  const std::string path = peer_path(name);
  std::vector<std::string> command{path, "--problem", request.problem};
  const std::pair<const char*, int> numbers[] = {
      {"--repeat", request.repeat}, {"--threads", request.threads}, {"--ranks", request.ranks}};
  for (const auto& [flag, value] : numbers) {
    command.emplace_back(flag);
    command.push_back(fmt::format("{}", value));
  }
  if (!python.empty() && is_python(path)) command.insert(command.begin(), python);
  const ProcessResult ran = run_process(command);
  if (ran.status != 0) {
    fail(ErrorKind::unsupported, "the peer {} failed with status {}: {}", path, ran.status,
         ran.errors.empty() ? "it said nothing" : ran.errors.substr(0, ran.errors.find_last_not_of('\n') + 1));
  }
  const auto json = nlohmann::json::parse(ran.output, nullptr, false);
  if (!json.is_object() || seconds_of(json, "fwd_ms") <= 0) {
    fail(ErrorKind::unsupported, "the peer {} printed no JSON object with fwd_ms above 0, but '{}'", path,
         ran.output.substr(0, 200));
  }
  PeerResult result{{seconds_of(json, "fwd_ms"), seconds_of(json, "bwd_ms"), seconds_of(json, "both_ms")}, {}};
  if (json.contains("versions") && json["versions"].is_object()) {
    for (const auto& [what, value] : json["versions"].items()) {
      result.versions[what] = value.is_string() ? value.get<std::string>() : value.dump();
    }
  }
  return result;
}

}  // namespace rotunda::cli
