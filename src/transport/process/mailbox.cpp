#include "transport/process/mailbox.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <new>
#include <random>

#include "base/fail.hpp"
#include "transport/rendezvous/sockets.hpp"

namespace rotunda::process {
namespace {

// A record of an exchange takes some hundred bytes a message.
constexpr std::size_t kRingBytes = 64 * 1024;
constexpr std::size_t kLine = 64;  // the two ends don't share a cache line

}  // namespace

/// One writer, one reader. Both count bytes since the beginning.
struct Mailbox::Ring {
  alignas(kLine) std::atomic<std::uint64_t> written;
  alignas(kLine) std::atomic<std::uint64_t> read;
  alignas(kLine) char bytes[kRingBytes];
};
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);  // else it would not work between processes

namespace {

using rendezvous::Descriptor;

std::string new_name() {
  std::random_device random;
  return fmt::format("/rotunda-{}-{:08x}{:08x}", ::getpid(), random(), random());
}

[[noreturn]] void refuse(const Rendezvous& rendezvous, const char* what) {
  fail(ErrorKind::unsupported,
       "rank {} can't {} memory that it shares with rank 0: {}; the ranks must be processes of one host that share "
       "/dev/shm (in a container: --ipc=host, or a larger --shm-size)",
       rendezvous.rank(), what, std::strerror(errno));
}

}  // namespace

Mailbox::Mailbox(Rendezvous& rendezvous) : rank_(rendezvous.rank()), size_(rendezvous.size()) {
  kept_.resize(static_cast<std::size_t>(size_));
  bytes_ = sizeof(Ring) * static_cast<std::size_t>(size_) * static_cast<std::size_t>(size_);
  std::string name = rank_ == 0 ? new_name() : "";
  Descriptor file;
  if (rank_ == 0) {
    file = Descriptor(::shm_open(name.c_str(), O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, S_IRUSR | S_IWUSR));
    if (!file.open()) refuse(rendezvous, "make");
    // Reserved now: memory that is missing later would be a signal, not an error.
    errno = ::posix_fallocate(file.get(), 0, static_cast<off_t>(bytes_));
    if (errno != 0) {
      ::shm_unlink(name.c_str());
      refuse(rendezvous, "reserve");
    }
  }
  const auto unlink = [&] {
    if (rank_ == 0) ::shm_unlink(name.c_str());
  };
  try {
    name = rendezvous.all_gather(name).front();
    if (rank_ != 0) file = Descriptor(::shm_open(name.c_str(), O_RDWR | O_CLOEXEC, 0));
    if (!file.open()) refuse(rendezvous, "open");
    memory_ = ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
    if (memory_ == MAP_FAILED) refuse(rendezvous, "map");
    (void)rendezvous.all_gather("");  // everybody has it open: its name may go
  } catch (...) {
    unlink();
    throw;
  }
  unlink();
}

Mailbox::~Mailbox() {
  ::munmap(memory_, bytes_);
}

/// New shared memory is zero, which is an empty ring.
Mailbox::Ring& Mailbox::ring(int from, int to) const {
  return static_cast<Ring*>(memory_)[static_cast<std::size_t>(from * size_ + to)];
}

void Mailbox::send(int peer, std::string_view bytes) {
  kept_[static_cast<std::size_t>(peer)].append(bytes);
  flush(peer);
}

void Mailbox::flush() {
  for (int peer = 0; peer < size_; ++peer) flush(peer);
}

void Mailbox::flush(int peer) {
  std::string& kept = kept_[static_cast<std::size_t>(peer)];
  if (kept.empty()) return;
  Ring& to = ring(rank_, peer);
  const std::uint64_t begin = to.written.load(std::memory_order_relaxed);
  const std::uint64_t room = kRingBytes - (begin - to.read.load(std::memory_order_acquire));
  const auto count = std::min<std::size_t>(room, kept.size());
  const std::size_t at = begin % kRingBytes;
  const std::size_t first = std::min(count, kRingBytes - at);
  std::memcpy(to.bytes + at, kept.data(), first);
  std::memcpy(to.bytes, kept.data() + first, count - first);
  to.written.store(begin + count, std::memory_order_release);
  kept.erase(0, count);
}

void Mailbox::receive(int peer, std::string& to) {
  Ring& from = ring(peer, rank_);
  const std::uint64_t begin = from.read.load(std::memory_order_relaxed);
  const auto count = static_cast<std::size_t>(from.written.load(std::memory_order_acquire) - begin);
  if (count == 0) return;
  const std::size_t at = begin % kRingBytes;
  const std::size_t first = std::min(count, kRingBytes - at);
  to.append(from.bytes + at, first);
  to.append(from.bytes, count - first);
  from.read.store(begin + count, std::memory_order_release);
}

}  // namespace rotunda::process
