#include "transport/nccl/watchdog.hpp"

#include "base/fail.hpp"

namespace rotunda::nccl {
namespace {

constexpr auto kPause = std::chrono::milliseconds(10);
// A call that takes longer than this after a failure is stuck; the communicator is taken away from no other.
constexpr auto kCallTime = std::chrono::milliseconds(500);

bool has_come(const cuda::Event& event) {
  const cudaError_t result = cudaEventQuery(event.get());
  (void)cudaGetLastError();
  return result != cudaErrorNotReady;
}

}  // namespace

Watchdog::Watchdog(Rendezvous& rendezvous, std::shared_ptr<Communicator> communicator, const Device& device)
    : rendezvous_(rendezvous), communicator_(std::move(communicator)), device_(device) {
  thread_ = std::thread([this] { watch(); });
}

Watchdog::~Watchdog() {
  {
    const std::scoped_lock lock(mutex_);
    ending_ = true;
    wake_.notify_all();
  }
  thread_.join();
}

void Watchdog::add(int id, std::shared_ptr<cuda::Event> begin, std::shared_ptr<cuda::Event> end) {
  const std::scoped_lock lock(mutex_);
  watched_.push_back({id, std::move(begin), std::move(end), {}});
}

bool Watchdog::enter(int id) {
  const std::scoped_lock lock(mutex_);
  if (rendezvous_.failed()) return false;
  call_ = id;
  call_begun_ = Clock::now();
  return true;
}

void Watchdog::leave() {
  const std::scoped_lock lock(mutex_);
  call_begun_ = Clock::time_point::max();
}

void Watchdog::bite() noexcept {
  communicator_->abort();
}

void Watchdog::watch() {
  (void)cudaSetDevice(device_.index);
  cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;  // a query here is no part of anybody's capture
  (void)cudaThreadExchangeStreamCaptureMode(&mode);
  std::unique_lock lock(mutex_);
  while (!ending_) {
    const auto id = late();
    const bool in_call = call_begun_ != Clock::time_point::max() && Clock::now() - call_begun_ < kCallTime;
    lock.unlock();
    if (id && !rendezvous_.failed()) fail_late(*id);
    if (rendezvous_.failed() && !in_call) communicator_->abort();
    lock.lock();
    wake_.wait_for(lock, kPause, [this] { return ending_; });
  }
}

std::optional<int> Watchdog::late() {
  const auto now = Clock::now();
  if (call_begun_ != Clock::time_point::max() && now - call_begun_ > rendezvous_.timeout()) return call_;
  while (!watched_.empty()) {
    Watched& first = watched_.front();
    if (has_come(*first.end)) {
      watched_.pop_front();
      continue;
    }
    if (!has_come(*first.begin)) return std::nullopt;
    if (first.begun == Clock::time_point{}) first.begun = now;
    if (now - first.begun > rendezvous_.timeout()) return first.id;
    return std::nullopt;
  }
  return std::nullopt;
}

void Watchdog::fail_late(int id) {
  const auto [slowest, posts] = rendezvous_.slowest();
  const double seconds = std::chrono::duration<double>(rendezvous_.timeout()).count();
  if (slowest == rendezvous_.rank()) {
    rendezvous_.abort(
        fmt::format("rank {} waited {} s for its peers to end exchange {}", rendezvous_.rank(), seconds, id));
    return;
  }
  rendezvous_.abort(fmt::format("rank {} waited {} s for rank {} in exchange {}: it has posted only {} exchanges",
                                rendezvous_.rank(), seconds, slowest, id, posts));
}

}  // namespace rotunda::nccl
