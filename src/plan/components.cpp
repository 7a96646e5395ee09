// Kernels, transports and devices: what is there, and why the rest is not.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "base/cuda_device.hpp"
#include "base/environment.hpp"
#include "base/fail.hpp"
#include "plan/selection.hpp"
#include "rotunda/info.hpp"
#include "transport/availability.hpp"

namespace rotunda {
namespace {

/// Kernels say who they are in most of their reasons.
std::string sentence(const std::string& name, const std::string& reason) {
  return reason.starts_with(name + " ") ? reason : fmt::format("{} {}", name, reason);
}

constexpr const char* kDisabled = "disabled by ROTUNDA_DISABLE";

/// Kernels that have a name here and come with later builds.
struct AbsentKernel {
  const char* name;
  const char* needs;
};
constexpr AbsentKernel kAbsentKernels[] = {
    {"cudnn", "not in this build: needs CUDA and cuDNN 9.19 or later"},
    {"fa4", "not in this build: needs CUDA and kernels exported by tools/fa4: configure with -DROTUNDA_FA4=ON"},
    {"sm90", "not in this build: needs CUDA and a Hopper GPU"},
    {"mma", "not in this build: needs CUDA"},
};

bool is_here(const AbsentKernel& absent) {
  return find_kernel(absent.name, Device::Kind::cuda) != nullptr;
}

const char* to_text(Device::Kind kind) {
  return kind == Device::Kind::cuda ? "cuda" : "cpu";
}

std::optional<std::string> refuse(const Kernel& kernel, const Problem& problem, const Device& device) {
  const KernelCapabilities can = kernel.capabilities();
  if (is_disabled(kernel.name())) return kDisabled;
  if (can.device != device.kind) return fmt::format("runs on {}, not on {}", to_text(can.device), to_text(device.kind));
  if (device.is_cuda() && !cuda::is_built_for(device.index)) {
    return fmt::format("was built for other devices than {} ({}): see the CMake option ROTUNDA_PORTABLE_ARCHITECTURES",
                       to_string(device), describe(device));
  }
  if (problem.max_logit && !can.row_max) return "gives no row maximum, which max_logit needs";
  if (problem.deterministic && !can.deterministic) return "is not deterministic";
  return kernel.refuse(problem, device);
}

/// Why no kernel serves the problem on a CUDA device when the device is left open, or nothing.
std::optional<std::string> nothing_on_cuda(const Problem& problem, const PlanOptions& options) {
  if (cuda_device_count() == 0) return why_no_cuda();
  std::vector<std::string> reasons;
  for (const Kernel* kernel : kernels()) {
    const KernelCapabilities can = kernel->capabilities();
    const bool wanted = options.kernel.empty() ? can.automatic : options.kernel == kernel->name();
    if (can.device != Device::Kind::cuda || !wanted) continue;
    const auto reason = refuse(*kernel, problem, cuda_device(0));
    if (!reason) return std::nullopt;
    reasons.push_back(sentence(kernel->name(), *reason));
  }
  if (reasons.empty()) return "no kernel that auto may choose runs there";
  return fmt::format("no kernel serves the problem there: {}", fmt::join(reasons, "; "));
}

/// The CUDA device of a rank. @throws Error unsupported where there is none of that number
int cuda_index(const PlanOptions& options, int rank) {
  const int count = cuda_device_count();
  for (const int device : options.devices) {
    if (device >= 0 && device < count) continue;
    fail(ErrorKind::unsupported, "device cuda:{} was asked for; this machine has {} CUDA device{}, counted from 0",
         device, count, count == 1 ? "" : "s");
  }
  if (options.devices.empty()) return rank % count;
  return options.devices[static_cast<std::size_t>(rank) % options.devices.size()];
}

}  // namespace

const std::vector<TransportEntry>& transport_table() {
  // What is missing is looked up once: NCCL is a library to be found and loaded.
  static const std::string no_ipc = why_no_ipc(), no_nccl = no_ipc.empty() ? why_no_nccl() : no_ipc;
  static const auto entry = [](const char* name, const std::string& what, const std::string& missing) {
    return TransportEntry{name, missing.empty(), missing.empty() ? what : fmt::format("{}: {}", what, missing), false};
  };
  static const std::vector<TransportEntry> table = {
      {"local", true, "ranks are threads of one process, on host memory or CUDA devices", true},
      entry("ipc", "ranks are processes of one host, on CUDA devices that they may share", no_ipc),
      entry("nccl",
            "ranks are processes with a CUDA device each, on any hosts" +
                (no_nccl.empty() ? fmt::format(", NCCL {}", nccl_version()) : ""),
            no_nccl),
      {"mpi", false, "processes on CPUs: not in this build", false},
      {"callback", true, "ranks are processes on host memory, and the program that they are carries the bytes", false},
  };
  return table;
}

Device::Kind device_kind(const Problem& problem, const PlanOptions& options) {
  std::vector<Refusal> refusals;
  return choose_device(problem, options, 0, refusals).kind;
}

Device choose_device(const Problem& problem, const PlanOptions& options, int rank, std::vector<Refusal>& refusals) {
  if (options.device == "cpu") return {};
  if (options.device == "cuda") {
    if (cuda_device_count() == 0) fail(ErrorKind::unsupported, "device cuda: {}", why_no_cuda());
    return cuda_device(cuda_index(options, rank));
  }
  if (!options.device.empty()) {
    fail(ErrorKind::bad_input, "device '{}' is unknown; allowed: auto, cpu, cuda", options.device);
  }
  const auto reason = nothing_on_cuda(problem, options);
  if (!reason) return cuda_device(cuda_index(options, rank));
  refusals.push_back({"device cuda", *reason, true});
  return {};
}

const Kernel& choose_kernel(const Problem& problem, const PlanOptions& options, const Device& device,
                            std::vector<Refusal>& refusals) {
  const Kernel* chosen = nullptr;
  std::vector<std::string> reasons, names;
  for (const Kernel* kernel : kernels()) {
    const std::string name = kernel->name();
    if (kernel->capabilities().device != device.kind && find_kernel(name, device.kind) != nullptr) continue;
    names.push_back(name);
    const bool wanted = options.kernel.empty() ? kernel->capabilities().automatic : options.kernel == name;
    std::optional<std::string> reason = refuse(*kernel, problem, device);
    const bool unsupported = reason.has_value();
    if (!unsupported && !wanted) {
      reason = options.kernel.empty() ? "serves only when asked for by name"
                                      : fmt::format("kernel {} was asked for", options.kernel);
    }
    if (!unsupported && wanted && chosen != nullptr) reason = fmt::format("{} is preferred", chosen->name());
    if (!reason) {
      chosen = kernel;
      continue;
    }
    refusals.push_back({"kernel " + name, *reason, unsupported});
    if (wanted) reasons.push_back(sentence(name, *reason));
  }
  for (const AbsentKernel& absent : kAbsentKernels) {
    if (is_here(absent)) continue;
    refusals.push_back({fmt::format("kernel {}", absent.name), absent.needs, true});
    if (options.kernel == absent.name) fail(ErrorKind::unsupported, "kernel {} is {}", absent.name, absent.needs);
  }
  if (chosen != nullptr) return *chosen;
  if (!options.kernel.empty() && std::find(names.begin(), names.end(), options.kernel) == names.end()) {
    fail(ErrorKind::bad_input, "kernel '{}' is unknown; allowed: auto, {}", options.kernel, fmt::join(names, ", "));
  }
  fail(ErrorKind::unsupported, "no kernel serves this problem: {}", fmt::join(reasons, "; "));
}

std::string choose_transport(const PlanOptions& options, std::vector<Refusal>& refusals) {
  std::vector<std::string> names, reasons;
  std::string chosen;
  for (const TransportEntry& entry : transport_table()) {
    names.push_back(entry.name);
    std::string reason = entry.available ? "" : entry.description;
    if (reason.empty() && is_disabled(entry.name)) reason = kDisabled;
    const bool unsupported = !reason.empty();
    const bool wanted = options.transport.empty() ? entry.automatic : options.transport == entry.name;
    if (!unsupported && wanted && chosen.empty()) {
      chosen = entry.name;
      continue;
    }
    if (!unsupported) {
      reason = options.transport.empty() ? "serves only when asked for by name"
                                         : fmt::format("transport {} was asked for", options.transport);
    }
    refusals.push_back({"transport " + entry.name, reason, unsupported});
    if (wanted) reasons.push_back(fmt::format("{} ({})", entry.name, reason));
  }
  if (!chosen.empty()) return chosen;
  if (!options.transport.empty() && std::find(names.begin(), names.end(), options.transport) == names.end()) {
    fail(ErrorKind::bad_input, "transport '{}' is unknown; allowed: auto, {}", options.transport,
         fmt::join(names, ", "));
  }
  fail(ErrorKind::unsupported, "no transport serves: {}", fmt::join(reasons, "; "));
}

std::vector<Component> components() {
  std::vector<Component> result;
  for (const Kernel* kernel : kernels()) {
    const Device::Kind device = kernel->capabilities().device;
    std::optional<std::string> lacks = kernel->missing();
    if (device == Device::Kind::cuda && cuda_device_count() == 0) lacks = why_no_cuda();
    if (is_disabled(kernel->name())) lacks = kDisabled;
    const std::string what = fmt::format("{}: {}", to_text(device), lacks ? *lacks : kernel->description());
    result.push_back({"kernel", kernel->name(), !lacks, what});
  }
  for (const AbsentKernel& absent : kAbsentKernels) {
    if (!is_here(absent)) result.push_back({"kernel", absent.name, false, absent.needs});
  }
  for (const TransportEntry& entry : transport_table()) {
    const bool off = is_disabled(entry.name);
    result.push_back({"transport", entry.name, entry.available && !off, off ? kDisabled : entry.description});
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
      variable("ROTUNDA_CACHE", "folder of calibration and compiled plans"),
      variable("ROTUNDA_TEST_REQUIRED", "kernels that tests must not skip"),
  };
}

std::string version() {
  return ROTUNDA_VERSION;
}

}  // namespace rotunda
