#include "transport/ipc/flags.hpp"

#include <algorithm>
#include <chrono>

#include "base/cuda/check.hpp"
#include "base/fail.hpp"
#include "transport/ipc/shared_memory.hpp"
#include "transport/process/records.hpp"

namespace rotunda::ipc {
namespace {

// What the driver shares is whole blocks of this size: the flags have theirs for themselves.
constexpr std::int64_t kBlock = std::int64_t{2} << 20;
// Between two rounds of setting flags: at first often, later for what is left of the process's life.
constexpr auto kPause = std::chrono::milliseconds(1), kLongPause = std::chrono::milliseconds(50);
constexpr int kQuickRounds = 10'000;

}  // namespace

Flags::Flags(Rendezvous& rendezvous, const Device& device)
    : rendezvous_(rendezvous),
      device_(device),
      bytes_(std::int64_t{2} * kSlots * rendezvous.size() * static_cast<std::int64_t>(sizeof(unsigned))),
      memory_(device, (bytes_ + kBlock - 1) / kBlock * kBlock),
      others_(static_cast<std::size_t>(rendezvous.size())) {
  const cuda::CurrentDevice current(device.index);
  set_bytes(memory_.data(), 0, memory_.bytes(), device, {});
  synchronize(device, {});
  cudaIpcMemHandle_t handle{};
  if (rendezvous.size() > 1) ROTUNDA_CUDA(cudaIpcGetMemHandle(&handle, memory_.data()));
  std::string words;
  process::put(words, handle);
  const std::vector<std::string> all = rendezvous.all_gather(words);
  for (int peer = 0; peer < rendezvous.size(); ++peer) {
    if (peer == rendezvous.rank()) continue;
    std::string_view bytes = all[static_cast<std::size_t>(peer)];
    others_[static_cast<std::size_t>(peer)] =
        open_handle(process::get<cudaIpcMemHandle_t>(bytes), rendezvous.rank(), peer, device.index);
  }
  ROTUNDA_CUDA(cudaMallocHost(reinterpret_cast<void**>(&ones_), static_cast<std::size_t>(bytes_)));
  std::fill_n(ones_, bytes_ / static_cast<std::int64_t>(sizeof(unsigned)), 1U);
  // Of the highest priority: a queue of the hardware that no waiting stream stands in.
  int least = 0, greatest = 0;
  ROTUNDA_CUDA(cudaDeviceGetStreamPriorityRange(&least, &greatest));
  ROTUNDA_CUDA(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, greatest));
  (void)rendezvous.all_gather("");  // all flags are 0 and mapped
  watcher_ = std::thread([this] { watch(); });
  rendezvous_.on_failure([this] {
    const std::scoped_lock lock(mutex_);
    failed_ = true;
    wake_.notify_all();
  });
}

Flags::~Flags() {
  rendezvous_.on_failure({});
  if (watcher_.joinable()) {
    {
      const std::scoped_lock lock(mutex_);
      ending_ = true;
      wake_.notify_all();
    }
    watcher_.join();
  }
  for (void* other : others_) {
    if (other != nullptr) (void)cudaIpcCloseMemHandle(other);
  }
  if (stream_ != nullptr) (void)cudaStreamSynchronize(stream_);
  if (stream_ != nullptr) (void)cudaStreamDestroy(stream_);
  if (ones_ != nullptr) (void)cudaFreeHost(ones_);
  (void)cudaGetLastError();
}

void Flags::abandon(std::unique_ptr<Flags> flags) {
  flags->rendezvous_.on_failure({});
  {
    const std::scoped_lock lock(flags->mutex_);
    flags->failed_ = true;
    flags->wake_.notify_all();
  }
  static std::mutex mutex;
  static auto* abandoned = new std::vector<std::unique_ptr<Flags>>;  // never destroyed: the device may be gone by then
  const std::scoped_lock lock(mutex);
  abandoned->push_back(std::move(flags));
}

std::int64_t Flags::index(Kind kind, int from, int slot) {
  return (std::int64_t{2} * from + (kind == Kind::taken ? 1 : 0)) * kSlots + slot;
}

CUdeviceptr Flags::mine(Kind kind, int peer, int slot) const {
  return reinterpret_cast<CUdeviceptr>(memory_.data()) + sizeof(unsigned) * index(kind, peer, slot);
}

CUdeviceptr Flags::of(int peer, Kind kind, int slot) const {
  return reinterpret_cast<CUdeviceptr>(others_[static_cast<std::size_t>(peer)]) +
         sizeof(unsigned) * index(kind, rendezvous_.rank(), slot);
}

void Flags::set_all() noexcept {
  const std::scoped_lock lock(stream_mutex_);
  const DuringCapture relaxed;
  int before = 0;
  (void)cudaGetDevice(&before);
  (void)cudaSetDevice(device_.index);
  (void)cudaMemcpyAsync(memory_.data(), ones_, static_cast<std::size_t>(bytes_), cudaMemcpyHostToDevice, stream_);
  (void)cudaStreamSynchronize(stream_);
  (void)cudaSetDevice(before);
  (void)cudaGetLastError();
}

/// A stream resets the flag that it has waited for, and may wait for it again: once is not enough.
void Flags::watch() {
  std::unique_lock lock(mutex_);
  wake_.wait(lock, [this] { return failed_ || ending_; });
  for (int round = 0; !ending_; ++round) {
    lock.unlock();
    set_all();
    lock.lock();
    wake_.wait_for(lock, round < kQuickRounds ? kPause : kLongPause, [this] { return ending_; });
  }
}

}  // namespace rotunda::ipc
