#include "transport/nccl/communicator.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <future>
#include <map>
#include <thread>

#include "base/cuda/check.hpp"
#include "base/fail.hpp"
#include "transport/process/records.hpp"

namespace rotunda::nccl {
namespace {

/// The device's name in the whole cluster.
std::string device_name(int device) {
  std::array<char, 256> host{}, bus{};
  (void)::gethostname(host.data(), host.size() - 1);
  ROTUNDA_CUDA(cudaDeviceGetPCIBusId(bus.data(), static_cast<int>(bus.size()), device));
  return fmt::format("{} {}", host.data(), bus.data());
}

void require_own_devices(const std::vector<std::string>& names) {
  for (std::size_t rank = 0; rank < names.size(); ++rank) {
    const auto first = std::find(names.begin(), names.end(), names[rank]);
    if (first == names.begin() + static_cast<std::ptrdiff_t>(rank)) continue;
    fail(
        ErrorKind::unsupported,
        "ranks {} and {} share a device ({}), and transport nccl needs one for each rank; ipc and local let them share",
        first - names.begin(), rank, names[rank]);
  }
}

struct Made {
  Result result = kSuccess;
  Comm comm = nullptr;
};

/// ncclCommInitRank returns when all ranks are there, or never: it runs in a thread that is left to itself where it is
/// late.
Comm connect(Rendezvous& rendezvous, const Device& device, const UniqueId& id) {
  std::promise<Made> promise;
  std::future<Made> future = promise.get_future();
  std::thread([promise = std::move(promise), id, index = device.index, rank = rendezvous.rank(),
               size = rendezvous.size()]() mutable {
    Made made;
    (void)cudaSetDevice(index);
    made.result = library().comm_init_rank(&made.comm, size, id, rank);
    promise.set_value(made);
  }).detach();
  const auto deadline = std::chrono::steady_clock::now() + rendezvous.timeout();
  while (future.wait_for(std::chrono::milliseconds(20)) != std::future_status::ready) {
    check_failure(rendezvous);
    if (std::chrono::steady_clock::now() < deadline) continue;
    fail_group(rendezvous, fmt::format("rank {} waited {} s for NCCL to connect its peers", rendezvous.rank(),
                                       std::chrono::duration<double>(rendezvous.timeout()).count()));
  }
  const Made made = future.get();
  if (made.result == kSuccess) return made.comm;
  check_failure(rendezvous);
  fail(ErrorKind::transport, "ncclCommInitRank failed on rank {}: {} (NCCL_DEBUG=WARN says more)", rendezvous.rank(),
       library().error_text(made.result));
}

/// Communicators by the devices of their ranks, in order, and this rank.
std::map<std::string, std::shared_ptr<Communicator>>& kept() {
  static auto* all = new std::map<std::string, std::shared_ptr<Communicator>>;  // outlives everything that uses CUDA
  return *all;
}

}  // namespace

void Communicator::abort() noexcept {
  if (!aborted_.exchange(true)) (void)library().comm_abort(comm_);
}

std::shared_ptr<Communicator> communicator_of(Rendezvous& rendezvous, const ProcessOptions& options) {
  static std::mutex mutex;
  const std::scoped_lock lock(mutex);
  const std::vector<std::string> names = rendezvous.all_gather(device_name(options.device.index));
  require_own_devices(names);
  std::string key = fmt::format("{}", rendezvous.rank());
  for (const std::string& name : names) key += "|" + name;
  const auto found = kept().find(key);
  const bool here = found != kept().end() && !found->second->aborted();
  UniqueId id{};
  if (rendezvous.rank() == 0) {
    const Result result = library().get_unique_id(&id);
    if (result != kSuccess) fail(ErrorKind::transport, "ncclGetUniqueId failed: {}", library().error_text(result));
  }
  std::string words(here ? "1" : "0");
  process::put(words, id);
  const std::vector<std::string> all = rendezvous.all_gather(words);
  if (std::all_of(all.begin(), all.end(), [](const std::string& each) { return each.starts_with("1"); })) {
    return found->second;
  }
  std::string_view first = all.front();
  first.remove_prefix(1);
  auto made = std::make_shared<Communicator>(connect(rendezvous, options.device, process::get<UniqueId>(first)));
  return kept()[key] = made;
}

}  // namespace rotunda::nccl
