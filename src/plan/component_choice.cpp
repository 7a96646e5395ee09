// Choosing the device, the kernel and the transport: the first that serves, and a reason for every other.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "base/cuda_device.hpp"
#include "base/environment.hpp"
#include "base/fail.hpp"
#include "plan/selection.hpp"
#include "transport/registry.hpp"

namespace rotunda {
namespace {

/// Kernels say who they are in most of their reasons.
std::string sentence(const std::string& name, const std::string& reason) {
  return reason.starts_with(name + " ") ? reason : fmt::format("{} {}", name, reason);
}

std::optional<std::string> refuse(const Kernel& kernel, const Problem& problem, const Device& device) {
  const KernelCapabilities can = kernel.capabilities();
  if (is_disabled(kernel.name())) return kDisabled;
  if (can.device != device.kind) {
    return fmt::format("runs on {}, not on {}", to_string(can.device), to_string(device.kind));
  }
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

Device::Kind device_kind(const Problem& problem, const PlanOptions& options) {
  std::vector<Refusal> refusals;
  return choose_device(problem, options, 0, refusals).kind;
}

Device choose_device(const Problem& problem, const PlanOptions& options, int rank, std::vector<Refusal>& refusals) {
  if (options.device == Device::Kind::cpu) return {};
  if (options.device == Device::Kind::cuda) {
    if (cuda_device_count() == 0) fail(ErrorKind::unsupported, "device cuda: {}", why_no_cuda());
    return cuda_device(cuda_index(options, rank));
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
  for (const AbsentKernel& absent : absent_kernels()) {
    refusals.push_back({"kernel " + absent.name, absent.needs, true});
    if (options.kernel == absent.name) fail(ErrorKind::unsupported, "kernel {} is {}", absent.name, absent.needs);
  }
  if (chosen != nullptr) return *chosen;
  if (!options.kernel.empty() && std::find(names.begin(), names.end(), options.kernel) == names.end()) {
    fail(ErrorKind::bad_input, "kernel '{}' is unknown; allowed: auto, {}", options.kernel, fmt::join(names, ", "));
  }
  for (const Refusal& refusal : refusals) {
    const bool serves = !refusal.unsupported && refusal.what.starts_with("kernel ");
    if (serves) reasons.push_back(refusal.what.substr(7) + " " + refusal.reason);
  }
  fail(ErrorKind::unsupported, "no kernel serves this problem: {}", fmt::join(reasons, "; "));
}

std::string choose_transport(const PlanOptions& options, const Device& device, std::vector<Refusal>& refusals) {
  std::vector<std::string> names, reasons;
  const TransportEntry* chosen = nullptr;
  for (const TransportEntry& entry : transports()) {
    names.push_back(entry.name);
    std::string reason = entry.available() ? "" : entry.text();
    if (reason.empty() && is_disabled(entry.name)) reason = kDisabled;
    const bool unsupported = !reason.empty();
    const bool wanted = options.transport.empty() ? entry.automatic : options.transport == entry.name;
    if (!unsupported && wanted && chosen == nullptr) {
      chosen = &entry;
      continue;
    }
    if (!unsupported) {
      reason = options.transport.empty() ? "serves only when asked for by name"
                                         : fmt::format("transport {} was asked for", options.transport);
    }
    refusals.push_back({"transport " + entry.name, reason, unsupported});
    if (wanted) reasons.push_back(fmt::format("{} ({})", entry.name, reason));
  }
  if (chosen != nullptr) {
    if (const std::string reason = chosen->refuse(device); !reason.empty()) {
      fail(ErrorKind::unsupported, "{}", reason);
    }
    return chosen->name;
  }
  if (!options.transport.empty() && std::find(names.begin(), names.end(), options.transport) == names.end()) {
    fail(ErrorKind::bad_input, "transport '{}' is unknown; allowed: auto, {}", options.transport,
         fmt::join(names, ", "));
  }
  fail(ErrorKind::unsupported, "no transport serves: {}", fmt::join(reasons, "; "));
}

}  // namespace rotunda
