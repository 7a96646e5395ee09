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

double positive(const json& object, const char* key, const std::string& file) {
  const auto found = object.find(key);
  if (found == object.end()) fail(ErrorKind::bad_input, "{}: {} is missing", file, key);
  if (!found->is_number() || !(found->get<double>() > 0)) {
    fail(ErrorKind::bad_input, "{}: {} is {}, allowed are numbers above 0", file, key, found->dump().substr(0, 60));
  }
  return found->get<double>();
}

Machine from_file(const std::string& file) {
  const json object = json::parse(read_text(file), nullptr, false);
  if (!object.is_object()) fail(ErrorKind::bad_input, "{} holds no JSON object that describes a cluster", file);
  static const std::vector<std::string> keys{
      "name", "flops_per_second", "bytes_per_second", "seconds_per_message", "overlaps", "memory_bytes_per_second"};
  for (const auto& [key, value] : object.items()) {
    if (std::find(keys.begin(), keys.end(), key) == keys.end()) {
      fail(ErrorKind::bad_input, "{}: unknown key {}, allowed are {}{}", file, key, fmt::join(keys, ", "),
           suggestion(key, keys));
    }
  }
  Machine machine;
  machine.name = object.contains("name") && object["name"].is_string() ? object["name"].get<std::string>() : file;
  machine.flops_per_second = positive(object, "flops_per_second", file);
  machine.bytes_per_second = positive(object, "bytes_per_second", file);
  machine.seconds_per_message = positive(object, "seconds_per_message", file);
  if (object.contains("overlaps")) {
    if (!object["overlaps"].is_boolean()) {
      fail(ErrorKind::bad_input, "{}: overlaps is {}, allowed are true and false", file, object["overlaps"].dump());
    }
    machine.overlaps = object["overlaps"].get<bool>();
  }
  machine.memory_bytes_per_second = machine.overlaps ? kDeviceMemory : Machine{}.memory_bytes_per_second;
  if (object.contains("memory_bytes_per_second")) {
    machine.memory_bytes_per_second = positive(object, "memory_bytes_per_second", file);
  }
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
         "exchanges take the time of attention, as on CPUs), \"memory_bytes_per_second\" (for sums and conversions)}";
}

}  // namespace rotunda::cli
