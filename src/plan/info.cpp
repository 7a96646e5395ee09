#include "rotunda/info.hpp"

#include <fmt/format.h>

#include "base/environment.hpp"
#include "plan/selection.hpp"
#include "transport/registry.hpp"

namespace rotunda {

std::vector<Component> components() {
  std::vector<Component> result;
  for (const Kernel* kernel : kernels()) {
    const Device::Kind device = kernel->capabilities().device;
    std::optional<std::string> lacks = kernel->missing();
    if (device == Device::Kind::cuda && cuda_device_count() == 0) lacks = why_no_cuda();
    if (is_disabled(kernel->name())) lacks = kDisabled;
    const std::string what = fmt::format("{}: {}", to_string(device), lacks ? *lacks : kernel->description());
    result.push_back({"kernel", kernel->name(), !lacks, what});
  }
  for (const AbsentKernel& absent : absent_kernels()) result.push_back({"kernel", absent.name, false, absent.needs});
  for (const TransportEntry& entry : transports()) {
    const bool off = is_disabled(entry.name);
    result.push_back({"transport", entry.name, entry.available() && !off, off ? kDisabled : entry.text(),
                      entry.processes, entry.memory});
  }
  return result;
}

std::vector<Variable> environment_variables() {
  const auto variable = [](const char* name, const char* meaning) {
    return Variable{name, meaning, environment(name)};
  };
  return {
      variable("ROTUNDA_DISABLE", "kernels and transports not to be used, comma-separated"),
      variable("ROTUNDA_LOG", "error, warn (default), info or debug"),
      variable("ROTUNDA_TIMEOUT", "seconds after which a silent peer is an error (default 60)"),
      variable("ROTUNDA_CUDNN_PATH", "where to look for cuDNN first"),
      variable("ROTUNDA_CACHE", "folder of calibration and compiled plans; this version keeps none"),
      variable("ROTUNDA_TEST_REQUIRED", "kernels that tests must not skip"),
  };
}

std::string version() {
  return ROTUNDA_VERSION;
}

}  // namespace rotunda
