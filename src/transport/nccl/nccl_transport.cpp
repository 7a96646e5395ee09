#include "transport/nccl/nccl_transport.hpp"

#include <algorithm>
#include <thread>

#include "base/cuda/check.hpp"
#include "base/cuda/pack.hpp"
#include "base/cuda/strided_copy.hpp"
#include "base/fail.hpp"

namespace rotunda::nccl {
namespace {

using Clock = std::chrono::steady_clock;

constexpr auto kMostPatience = std::chrono::seconds(10);
// NCCL sees a dead peer's socket before its process is known to be dead: who died is worth a moment.
constexpr auto kGrace = std::chrono::seconds(1);
constexpr std::int64_t kAlign = 256;

std::int64_t bytes_of(const TensorView& view) {
  return view.elements() * static_cast<std::int64_t>(size_of(view.dtype));
}

/// The view's shape over memory that is dense in the order of its axes.
TensorView dense_view(const TensorView& view, void* data) {
  return make_view(data, view.dtype, Layout::bshd, view.batch(), view.rows(), view.heads(), view.dim());
}

bool is_dense(const TensorView& view) {
  const TensorView dense = dense_view(view, view.data);
  for (std::size_t axis = 0; axis < 4; ++axis) {
    if (view.shape[axis] != 1 && view.stride[axis] != dense.stride[axis]) return false;
  }
  return true;
}

std::int64_t staging_bytes(std::span<const Message> messages, int self) {
  std::int64_t bytes = 0;
  for (const Message& message : messages) {
    if (message.peer == self || message.view.empty() || is_dense(message.view)) continue;
    bytes += (bytes_of(message.view) + kAlign - 1) / kAlign * kAlign;
  }
  return bytes;
}

/// Calls use with the staged messages' moves, as many at a time as a launch takes.
void for_packs(const std::vector<NcclTransport::Staged>& messages, const std::byte* memory, auto&& use) {
  std::vector<cuda::Move> moves;
  for (const auto& message : messages) {
    if (!message.is_staged()) continue;
    moves.push_back({message.view, static_cast<const std::byte*>(message.dense.data) - memory});
    if (moves.size() < cuda::kMostMoves) continue;
    use(std::span<const cuda::Move>(moves));
    moves.clear();
  }
  if (!moves.empty()) use(std::span<const cuda::Move>(moves));
}

}  // namespace

NcclTransport::NcclTransport(const ProcessOptions& options, std::unique_ptr<Rendezvous> the_rendezvous,
                             std::shared_ptr<Communicator> communicator)
    : ProcessEnd(options, std::move(the_rendezvous)),
      communicator_(std::move(communicator)),
      events_(std::make_shared<cuda::EventPool>(options.device.index)),
      stream_(options.device),
      watchdog_(std::make_unique<Watchdog>(rendezvous(), communicator_, options.device)) {}

NcclTransport::~NcclTransport() {
  if (rendezvous().failed()) stop();
  if (!rendezvous().failed() && !is_captured()) (void)cudaStreamSynchronize(cuda::native(stream_.get()));
  (void)cudaGetLastError();
}

void NcclTransport::post(int id, std::span<const Message> sends, std::span<const Message> receives) {
  check_post(id, sends, receives);
  const auto earlier = posted_.find(id);
  if (earlier != posted_.end() && !(earlier->second.sent && earlier->second.received)) {
    fail(ErrorKind::internal, "rank {} posts exchange {} again, whose earlier post it has not awaited", rank(), id);
  }
  Posted& posted = posted_[id] = {};
  posted.sent = sends.empty();
  posted.received = receives.empty();
  if (sends.empty() && receives.empty()) return;
  const cuda::CurrentDevice current(device().index);
  record(compute_)->hold(device().index, stream_.get());
  std::byte* const memory = staging(id, staging_bytes(sends, rank()) + staging_bytes(receives, rank()));
  std::byte* next_place = memory;
  const std::vector<Staged> outgoing = stage(sends, next_place), incoming = stage(receives, next_place);
  for_packs(outgoing, memory, [&](auto moves) { cuda::pack(moves, memory, device(), stream_.get()); });
  exchange(id, outgoing, incoming);
  for_packs(incoming, memory, [&](auto moves) { cuda::unpack(memory, moves, device(), stream_.get()); });
  std::vector<TensorView> own;
  for (const Message& message : sends) {
    if (message.peer == rank()) own.push_back(message.view);
  }
  std::size_t next = 0;
  for (const Message& message : receives) {
    if (message.peer == rank()) cuda::copy(own[next++], message.view, device().index, stream_.get());
  }
  posted.done = record(stream_.get());
  for (const Message& message : sends) {
    counters_.messages_sent += message.peer == rank() ? 0 : 1;
    counters_.bytes_sent += message.peer == rank() ? 0 : bytes_of(message.view);
  }
  for (const Message& message : receives) {
    counters_.messages_received += message.peer == rank() ? 0 : 1;
    counters_.bytes_received += message.peer == rank() ? 0 : bytes_of(message.view);
  }
}

std::byte* NcclTransport::staging(int id, std::int64_t bytes) {
  if (bytes == 0) return nullptr;
  DeviceMemory& memory = staging_[id];
  if (memory.bytes() >= bytes) return memory.data();
  if (is_captured()) {
    fail(ErrorKind::unsupported,
         "rank {}: exchange {} needs {} bytes of staging memory, which can't be made while a stream is captured: run "
         "the same exchanges once before the capture",
         rank(), id, bytes);
  }
  if (memory.bytes() > 0) outgrown_.push_back(std::move(memory));
  memory = DeviceMemory(device(), bytes);
  return memory.data();
}

std::vector<NcclTransport::Staged> NcclTransport::stage(std::span<const Message> messages, std::byte*& memory) const {
  std::vector<Staged> result;
  for (const Message& message : messages) {
    if (message.peer == rank() || message.view.empty()) continue;
    Staged staged{message.peer, message.view, dense_view(message.view, message.view.data)};
    if (!is_dense(message.view)) {
      staged.dense.data = memory;
      memory += (staged.bytes() + kAlign - 1) / kAlign * kAlign;
    }
    result.push_back(staged);
  }
  return result;
}

void NcclTransport::exchange(int id, const std::vector<Staged>& sends, const std::vector<Staged>& receives) {
  if (sends.empty() && receives.empty()) return;
  const Library& nccl = library();
  const cudaStream_t stream = cuda::native(stream_.get());
  const bool captured = is_captured();
  const Mark begin = captured ? nullptr : record(stream_.get());
  if (!watchdog_->enter(id)) check_group();
  check(nccl.group_start(), "ncclGroupStart");
  for (const Staged& message : sends) {
    check(nccl.send(message.dense.data, static_cast<std::size_t>(message.bytes()), kUint8, message.peer,
                    communicator_->get(), stream),
          "ncclSend");
  }
  for (const Staged& message : receives) {
    check(nccl.receive(message.dense.data, static_cast<std::size_t>(message.bytes()), kUint8, message.peer,
                       communicator_->get(), stream),
          "ncclRecv");
  }
  check(nccl.group_end(), "ncclGroupEnd");
  watchdog_->leave();
  if (!captured) watchdog_->add(id, begin, record(stream_.get()));
}

void NcclTransport::check(Result result, const char* call) {
  if (result == kSuccess) return;
  watchdog_->leave();
  const auto deadline = Clock::now() + kGrace;
  while (!rendezvous().failed() && Clock::now() < deadline) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  fail_all(
      fmt::format("{} failed on rank {}: {} (NCCL_DEBUG=WARN says more)", call, rank(), library().error_text(result)));
}

NcclTransport::Posted& NcclTransport::find(int id) {
  const auto posted = posted_.find(id);
  if (posted == posted_.end()) {
    fail(ErrorKind::internal, "rank {} awaits exchange {}, which it has not posted", rank(), id);
  }
  return posted->second;
}

void NcclTransport::hold(int id, bool Posted::*awaited) {
  check_group();
  Posted& posted = find(id);
  if (posted.done != nullptr && !(posted.*awaited)) posted.done->hold(device().index, compute_);
  posted.*awaited = true;
}

void NcclTransport::await(int id) {
  hold(id, &Posted::received);
}

void NcclTransport::await_sent(int id) {
  hold(id, &Posted::sent);
}

void NcclTransport::stop() noexcept {
  if (watchdog_ == nullptr) return;
  watchdog_->bite();
  const auto deadline = Clock::now() + kMostPatience;
  while (!is_captured() && cudaStreamQuery(cuda::native(stream_.get())) == cudaErrorNotReady &&
         Clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
  (void)cudaGetLastError();
}

bool NcclTransport::is_captured() const {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  if (cudaStreamIsCapturing(cuda::native(stream_.get()), &status) != cudaSuccess) (void)cudaGetLastError();
  return status != cudaStreamCaptureStatusNone;
}

NcclTransport::Mark NcclTransport::record(Stream stream) {
  Mark event = events_->take();
  event->record(stream);
  return event;
}

}  // namespace rotunda::nccl
