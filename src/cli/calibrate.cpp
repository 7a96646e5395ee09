#include "cli/calibrate.hpp"

#include <algorithm>
#include <chrono>
#include <filesystem>

#include "base/fail.hpp"
#include "cli/atomic_file.hpp"
#include "cli/inputs.hpp"
#include "cli/record.hpp"
#include "cli/session.hpp"
#include "cli/table.hpp"
#include "cli/terminal.hpp"
#include "rotunda/info.hpp"
#include "rotunda/transport.hpp"

namespace rotunda::cli {
namespace {

constexpr int kHeadDims[] = {64, 128, 256, 512};

/// Of so many runs the fastest counts: what else the machine was doing is no part of it.
constexpr int kRuns = 8;

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

/// Forward and backward together on one rank, of one thread on a CPU; nothing where the kernel does not serve that.
std::optional<KernelRate> rate_of(const std::string& kernel, const Device& device, DType dtype, int d) {
  const int s = device.is_cuda() ? 8192 : 256, heads = (device.is_cuda() ? 4096 : 512) / d;
  SessionSetup setup;
  setup.problem = parse_problem(fmt::format("dtype={} s_q={} h_q={} d={} grad=1", to_string(dtype), s, heads, d));
  setup.options.machine = Machine{};  // whatever was measured before
  setup.options.kernel = kernel;
  setup.options.device = device.kind;
  if (device.is_cuda()) setup.options.devices = {device.index};
  setup.options.threads = 1;
  try {
    const Inputs inputs = random_inputs(setup.problem, 1);
    Session session(setup, inputs.tensors.views);
    const double seconds = std::ranges::min(session.both(kRuns));
    return KernelRate{kernel, 8 * static_cast<int>(size_of(dtype)), d, 3.5 * forward_flops(setup.problem) / seconds};
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::unsupported) throw;
    return std::nullopt;
  }
}

/// Seconds in which two ranks, threads of this process, exchange messages of so many bytes.
double exchange_seconds(std::int64_t bytes) {
  auto group = make_local_group(2);
  std::vector<double> seconds;
  run_ranks(group, [&](Transport& rank) {
    std::vector<float> from(static_cast<std::size_t>(bytes) / sizeof(float), 1), to(from.size());
    const auto message = [&](std::vector<float>& data) {
      const auto elements = static_cast<std::int64_t>(data.size());
      return Message{1 - rank.rank(), make_view(data.data(), DType::fp32, Layout::bshd, 1, 1, 1, elements)};
    };
    const Message send = message(from), receive = message(to);
    for (int i = 0; i < kRuns; ++i) {
      const auto begin = std::chrono::steady_clock::now();
      rank.post(i, {&send, 1}, {&receive, 1});
      rank.await(i);
      rank.await_sent(i);
      if (rank.rank() == 0) seconds.push_back(seconds_since(begin));
    }
  });
  return std::ranges::min(seconds);
}

/// Bytes a second that `to += from` reads and writes, in arrays larger than caches.
double memory_rate() {
  std::vector<float> from(std::size_t{1} << 24, 1), to(from.size());
  std::vector<double> seconds;
  for (int i = 0; i < kRuns; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    for (std::size_t at = 0; at < to.size(); ++at) to[at] += from[at];
    seconds.push_back(seconds_since(begin));
  }
  return 3 * static_cast<double>(from.size() * sizeof(float)) / std::ranges::min(seconds);
}

Calibration measure(const Device& device, Progress& progress) {
  Calibration result;
  const std::vector<Component> all = components();
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (all[i].kind != "kernel" || all[i].name == "reference" || !all[i].available) continue;
    for (const DType dtype : {DType::bf16, DType::fp32}) {
      for (const int d : kHeadDims) {
        progress.update(static_cast<double>(i) / static_cast<double>(all.size()));
        if (const auto rate = rate_of(all[i].name, device, dtype, d)) result.rates.push_back(*rate);
      }
    }
  }
  if (device.is_cuda()) return result;
  constexpr std::int64_t large = 16 << 20;
  result.seconds_per_message = exchange_seconds(sizeof(float));
  result.bytes_per_second = large / exchange_seconds(large);
  result.memory_bytes_per_second = memory_rate();
  return result;
}

}  // namespace

void calibrate(const Options& options) {
  const std::string path = calibration_file();
  if (path.empty()) {
    fail(ErrorKind::bad_input, "--calibrate keeps what it measures in the folder ROTUNDA_CACHE, which is not set");
  }
  std::error_code ignored;
  std::filesystem::create_directories(std::filesystem::path(path).parent_path(), ignored);
  require_writable(path);
  std::vector<Device> devices{Device{}};
  if (cuda_device_count() > 0) devices.push_back(cuda_device(0));
  for (const Device& device : devices) {
    Progress progress(options, "measuring " + to_string(device));
    const Calibration calibration = measure(device, progress);
    const FolderLock lock(path);
    const std::string before = std::filesystem::exists(path, ignored) ? read_text(path) : "";
    write_text(path, with_calibration(before, device, calibration));
  }
}

std::string calibration_text(const Device& device) {
  const auto calibration = find_calibration(device);
  if (calibration == nullptr) return "";
  std::string text;
  for (const KernelRate& rate : calibration->rates) {
    text += fmt::format("    {}, {} bits, d {}: {}FLOP/s{}\n", rate.kernel, rate.bits, rate.d,
                        flops_text(rate.flops_per_second), device.is_cuda() ? "" : " a thread");
  }
  if (calibration->bytes_per_second > 0) {
    text += fmt::format("    {}B/s between ranks, {} µs a message, {}B/s of memory\n",
                        flops_text(calibration->bytes_per_second), figure(1e6 * calibration->seconds_per_message),
                        flops_text(calibration->memory_bytes_per_second));
  }
  return text;
}

}  // namespace rotunda::cli
