// Round figures, and measured ones from the calibration file.
#include "rotunda/machine.hpp"

#include <fmt/format.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/environment.hpp"
#include "base/fail.hpp"
#include "base/log.hpp"
#include "plan/selection.hpp"
#include "rotunda/info.hpp"

namespace rotunda {
namespace {

using nlohmann::ordered_json;
namespace fs = std::filesystem;

/// Other versions have other kernels.
std::string key_of(const Device& device) {
  return fmt::format("{}, rotunda {}", describe(device), version());
}

double positive(const ordered_json& value) {
  const double number = value.get<double>();
  if (!(number > 0) || !std::isfinite(number)) fail(ErrorKind::bad_input, "{} is no rate", value.dump());
  return number;
}

Calibration parse_calibration(const ordered_json& json) {
  Calibration result;
  for (const ordered_json& rate : json.at("rates")) {
    result.rates.push_back({rate.at("kernel").get<std::string>(), rate.at("bits").get<int>(), rate.at("d").get<int>(),
                            positive(rate.at("flops_per_second"))});
  }
  const auto read = [&](const char* key, double& to) {
    if (json.contains(key)) to = positive(json.at(key));
  };
  read("bytes_per_second", result.bytes_per_second);
  read("seconds_per_message", result.seconds_per_message);
  read("memory_bytes_per_second", result.memory_bytes_per_second);
  return result;
}

using Calibrations = std::map<std::string, std::shared_ptr<const Calibration>>;

/// Those of a file, by key. @throws what says why it holds none
Calibrations read_file(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  if (!file || !(text << file.rdbuf())) fail(ErrorKind::bad_input, "it can't be read");
  Calibrations result;
  const ordered_json calibrations = ordered_json::parse(text.str());
  for (const auto& [key, value] : calibrations.items()) {
    result[key] = std::make_shared<const Calibration>(parse_calibration(value));
  }
  return result;
}

Calibrations load(const std::string& path) {
  std::error_code ignored;
  if (!fs::exists(path, ignored)) return {};
  try {
    return read_file(path);
  } catch (const std::exception& error) {
    log(LogLevel::warn, "warning: the calibration in {} is not used, plans are made by round figures: {}", path,
        error.what());
    return {};
  }
}

const KernelRate* rate_of(const Calibration& calibration, const Problem& problem, const std::string& kernel) {
  const KernelRate* best = nullptr;
  const auto fits = [&](const KernelRate& rate) { return rate.d >= std::max(problem.d, problem.d_v); };
  for (const KernelRate& rate : calibration.rates) {
    if (rate.kernel != kernel || rate.bits != 8 * static_cast<int>(size_of(problem.dtype))) continue;
    const bool nearer = best == nullptr || (fits(rate) ? !fits(*best) || rate.d < best->d : rate.d > best->d);
    if (nearer) best = &rate;
  }
  return best;
}

}  // namespace

std::string calibration_file() {
  const auto folder = environment("ROTUNDA_CACHE");
  return folder ? (fs::path(*folder) / "calibration.json").string() : "";
}

std::shared_ptr<const Calibration> find_calibration(const Device& device) {
  static std::mutex mutex;
  static std::map<std::string, Calibrations> files;  // by path
  const std::string path = calibration_file();
  if (path.empty()) return nullptr;
  const std::scoped_lock lock(mutex);
  auto found = files.find(path);
  if (found == files.end()) found = files.emplace(path, load(path)).first;
  const auto kept = found->second.find(key_of(device));
  return kept == found->second.end() ? nullptr : kept->second;
}

std::string with_calibration(const std::string& text, const Device& device, const Calibration& calibration) {
  ordered_json file = ordered_json::parse(text, nullptr, false);
  if (!file.is_object()) file = ordered_json::object();
  ordered_json rates = ordered_json::array();
  for (const KernelRate& rate : calibration.rates) {
    rates.push_back(
        {{"kernel", rate.kernel}, {"bits", rate.bits}, {"d", rate.d}, {"flops_per_second", rate.flops_per_second}});
  }
  ordered_json json{{"rates", rates}};
  const auto write = [&](const char* key, double value) {
    if (value > 0) json[key] = value;
  };
  write("bytes_per_second", calibration.bytes_per_second);
  write("seconds_per_message", calibration.seconds_per_message);
  write("memory_bytes_per_second", calibration.memory_bytes_per_second);
  file[key_of(device)] = json;
  return file.dump(1) + "\n";
}

std::string to_text(const Machine& machine) {
  std::string text;
  for_fields(machine, [&](const char* name, const auto& value) {
    text += fmt::format("{}{}: {}", text.empty() ? "" : ", ", name, value);
  });
  return "{" + text + "}";
}

Machine machine_of(const Problem& problem, const Kernel& kernel, const Device& device, int threads) {
  Machine machine = device.is_cuda() ? Machine{"cuda", 5e14, 3e11, 1.5e-5, true, 3e12, 5e-5} : Machine{};
  const auto calibration = find_calibration(device);
  if (calibration == nullptr) return machine;
  machine.name = describe(device);
  const auto take = [](double measured, double& to) {
    if (measured > 0) to = measured;
  };
  take(calibration->bytes_per_second, machine.bytes_per_second);
  take(calibration->seconds_per_message, machine.seconds_per_message);
  take(calibration->memory_bytes_per_second, machine.memory_bytes_per_second);
  if (const KernelRate* rate = rate_of(*calibration, problem, kernel.name())) {
    machine.flops_per_second = rate->flops_per_second * (device.is_cuda() ? 1 : threads);
  }
  return machine;
}

}  // namespace rotunda
