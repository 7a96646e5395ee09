#include "cli/cluster.hpp"

#include <nlohmann/json.hpp>
#include <string_view>
#include <vector>

#include "base/fail.hpp"
#include "cli/atomic_file.hpp"
#include "cli/options.hpp"

namespace rotunda::cli {
namespace {

using nlohmann::json;

/// Of a GPU, where a file says nothing: bytes a second.
constexpr double kDeviceMemory = 3e12;

/// Round figures for orientation; a file with measured ones is better.
const std::vector<Machine>& known() {
  static const std::vector<Machine> machines{
      Machine{},
      {"h200_nvlink", 6e14, 3.4e11, 1e-5, true, 3.5e12},
  };
  return machines;
}

/// Whether a field may have a value, and which it may have.
struct Allowed {
  bool met;
  const char* what;
};
Allowed allowed(const json& value, const std::string&) {
  return {value.is_string(), "strings"};
}
Allowed allowed(const json& value, bool) {
  return {value.is_boolean(), "true and false"};
}
Allowed allowed(const json& value, double) {
  return {value.is_number() && value.get<double>() > 0, "numbers above 0"};
}

Machine from_file(const std::string& file) {
  const json object = json::parse(read_text(file), nullptr, false);
  if (!object.is_object()) fail(ErrorKind::bad_input, "{} holds no JSON object that describes a cluster", file);
  Machine machine;
  machine.name = file;
  std::vector<std::string> keys;
  for_fields(machine, [&](const char* key, const auto&) { keys.emplace_back(key); });
  for (const auto& [key, value] : object.items()) {
    if (std::find(keys.begin(), keys.end(), key) == keys.end()) {
      fail(ErrorKind::bad_input, "{}: unknown key {}, allowed are {}{}", file, key, fmt::join(keys, ", "),
           suggestion(key, keys));
    }
  }
  for (const char* key : {"flops_per_second", "bytes_per_second", "seconds_per_message"}) {
    if (!object.contains(key)) fail(ErrorKind::bad_input, "{}: {} is missing", file, key);
  }
  if (object.contains("overlaps") && object["overlaps"] == true) machine.memory_bytes_per_second = kDeviceMemory;
  for_fields(machine, [&](const char* key, auto& field) {
    if (!object.contains(key)) return;
    const json& value = object[key];
    const auto [met, what] = allowed(value, field);
    if (!met) fail(ErrorKind::bad_input, "{}: {} is {}, allowed are {}", file, key, value.dump().substr(0, 60), what);
    value.get_to(field);
  });
  return machine;
}

}  // namespace

Machine find_cluster(const std::string& name_or_file) {
  std::vector<std::string> names;
  for (const Machine& machine : known()) {
    if (machine.name == name_or_file) return machine;
    names.push_back(machine.name);
  }
  if (name_or_file.find_first_of("./") == std::string::npos) {
    fail(ErrorKind::bad_input, "--cluster is '{}', allowed are {} or a JSON file such as ./cluster.json", name_or_file,
         fmt::join(names, ", "));
  }
  return from_file(name_or_file);
}

const char* cluster_help() {
  return "Predict times too: cpu, h200_nvlink, or a JSON file {\"name\", \"flops_per_second\" (of a rank's attention), "
         "\"bytes_per_second\" (of a rank's link, each way), \"seconds_per_message\", \"overlaps\" (false: "
         "exchanges take the time of attention, as on CPUs), \"memory_bytes_per_second\" (for sums and conversions), "
         "\"seconds_per_call\" (of a kernel's start and end)}";
}

}  // namespace rotunda::cli
