#include "transport/rendezvous/rendezvous.hpp"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <map>
#include <mutex>
#include <thread>

#include "base/fail.hpp"
#include "transport/membership.hpp"
#include "transport/rendezvous/joining.hpp"
#include "transport/rendezvous/sockets.hpp"
#include "transport/timeout.hpp"

namespace rotunda {

using rendezvous::Clock;
using rendezvous::Connection;
using rendezvous::Descriptor;
using rendezvous::Frame;
using rendezvous::FrameKind;

namespace {

/// How often progress is told, and how long a rank that times out waits for the hub to name the late one.
constexpr auto kPulse = std::chrono::milliseconds(100);
constexpr auto kGrace = std::chrono::milliseconds(500);
/// How long one that leaves waits for what it has said to be taken.
constexpr auto kLinger = std::chrono::milliseconds(500);

/// Strings with their lengths, one after the other.
std::string pack(const std::vector<std::optional<std::string>>& pieces) {
  std::string bytes;
  for (const auto& piece : pieces) {
    const auto length = static_cast<std::uint64_t>(piece->size());
    bytes.append(reinterpret_cast<const char*>(&length), sizeof length);
    bytes.append(*piece);
  }
  return bytes;
}

std::vector<std::string> unpack(const std::string& bytes) {
  std::vector<std::string> pieces;
  for (std::size_t at = 0; at + sizeof(std::uint64_t) <= bytes.size();) {
    std::uint64_t length = 0;
    std::memcpy(&length, bytes.data() + at, sizeof length);
    at += sizeof length;
    if (length > bytes.size() - at) break;
    pieces.push_back(bytes.substr(at, length));
    at += length;
  }
  return pieces;
}

/// What is known of a rank.
struct Member {
  std::unique_ptr<Connection> connection;  ///< of the hub to it; on others only rank 0's, their way to the hub
  std::int64_t joined = 0;                 ///< agreements
  std::int64_t progress = 0;
  bool left = false;
};

}  // namespace

struct Rendezvous::Impl {
  RendezvousOptions options;
  Descriptor wake{::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};

  mutable std::mutex mutex;
  std::condition_variable changed;
  std::vector<Member> members;
  std::map<std::int64_t, std::vector<std::optional<std::string>>> pieces;  ///< hub: of agreements that are not complete
  std::map<std::int64_t, std::vector<std::string>> results;                ///< that have not been taken
  std::optional<PeerFailure> failure;
  std::atomic<bool> has_failed{false};
  std::int64_t told = 0;  ///< the progress that the others know
  bool leaving = false;
  std::mutex call_mutex;  ///< held while on_call runs
  std::function<void()> on_call;
  std::thread thread;

  [[nodiscard]] bool is_hub() const { return options.rank == 0; }
  [[nodiscard]] Member& member(int rank) { return members[static_cast<std::size_t>(rank)]; }
  [[nodiscard]] bool is_rank(int rank) const { return rank >= 0 && rank < options.size; }

  void wake_thread() const {
    const std::uint64_t one = 1;
    (void)!::write(wake.get(), &one, sizeof one);
  }

  // --- the thread that owns the sockets ---

  void serve() {
    auto pulse = Clock::now();
    auto end = Clock::time_point::max();
    while (true) {
      std::vector<pollfd> polled{{wake.get(), POLLIN, 0}};
      std::vector<int> ranks{-1};
      {
        const std::scoped_lock lock(mutex);
        for (int rank = 0; rank < options.size; ++rank) {
          const auto& connection = member(rank).connection;
          if (connection == nullptr || !connection->open()) continue;
          const int events = POLLIN | (connection->wants_to_write() ? POLLOUT : 0);
          polled.push_back({connection->descriptor(), static_cast<short>(events), 0});
          ranks.push_back(rank);
        }
        if (leaving && end == Clock::time_point::max()) end = Clock::now() + kLinger;
      }
      if (Clock::now() >= end || (end != Clock::time_point::max() && polled.size() == 1)) return;
      ::poll(polled.data(), polled.size(), static_cast<int>(kPulse.count()));
      std::uint64_t count = 0;
      (void)!::read(wake.get(), &count, sizeof count);
      bool news = false;
      {
        const std::scoped_lock lock(mutex);
        const bool failed_before = failure.has_value();
        for (std::size_t i = 1; i < polled.size(); ++i) serve_connection(ranks[i], polled[i].revents);
        if (Clock::now() - pulse >= kPulse) {
          pulse = Clock::now();
          tell_progress();
        }
        news = failure.has_value() && !failed_before;
      }
      if (news) call_back();
    }
  }

  void serve_connection(int rank, short events) {
    Connection& connection = *member(rank).connection;
    bool alive = true;
    if ((events & (POLLIN | POLLHUP | POLLERR)) != 0) alive = connection.read();
    try {
      while (auto frame = connection.take()) handle(rank, *frame);
    } catch (const Error& error) {
      set_failure({rank, error.what()});
      alive = false;
    }
    if (alive) alive = connection.flush();
    if (leaving && !connection.wants_to_write()) connection.finish_writing();
    if (alive) return;
    connection.close();
    if (!member(rank).left && !leaving) set_failure({rank, "its process has ended (it closed its connection)"});
    changed.notify_all();
  }

  void handle(int from, const Frame& frame) {
    const int about = frame.rank;
    if (!is_rank(about)) fail(ErrorKind::transport, "the rendezvous got a frame about rank {}", about);
    switch (frame.kind) {
      case FrameKind::gather: add_piece(from, frame.number, frame.payload); break;
      case FrameKind::gathered: finish_agreement(frame.number, unpack(frame.payload)); break;
      case FrameKind::failed: set_failure({about, frame.payload}); break;
      case FrameKind::progress:
        member(about).joined = std::max(member(about).joined, frame.number);
        std::memcpy(&member(about).progress, frame.payload.data(), std::min<std::size_t>(8, frame.payload.size()));
        if (is_hub()) relay(from, frame);
        break;
      case FrameKind::left:
        member(about).left = true;
        if (is_hub()) relay(from, frame);
        break;
      default: break;
    }
    changed.notify_all();
  }

  /// To everybody that this process is connected to, but for `except`.
  void relay(int except, const Frame& frame) {
    const auto bytes = rendezvous::encode(frame);
    for (int rank = 0; rank < options.size; ++rank) {
      const auto& connection = member(rank).connection;
      if (rank != except && connection != nullptr && connection->open()) connection->send(bytes);
    }
  }

  void add_piece(int rank, std::int64_t number, std::string bytes) {
    auto& all = pieces[number];
    all.resize(static_cast<std::size_t>(options.size));
    all[static_cast<std::size_t>(rank)] = std::move(bytes);
    member(rank).joined = std::max(member(rank).joined, number + 1);
    if (!std::all_of(all.begin(), all.end(), [](const auto& piece) { return piece.has_value(); })) return;
    relay(-1, {FrameKind::gathered, 0, number, pack(all)});
    std::vector<std::string> texts;
    for (auto& piece : all) texts.push_back(std::move(*piece));
    pieces.erase(number);
    finish_agreement(number, std::move(texts));
  }

  void finish_agreement(std::int64_t number, std::vector<std::string> texts) {
    results[number] = std::move(texts);
    for (Member& each : members) each.joined = std::max(each.joined, number + 1);
    changed.notify_all();
  }

  void tell_progress() {
    Member& self = member(options.rank);
    const std::int64_t sum = self.progress + self.joined;
    if (sum == told) return;
    told = sum;
    std::string bytes(sizeof self.progress, '\0');
    std::memcpy(bytes.data(), &self.progress, sizeof self.progress);
    relay(-1, {FrameKind::progress, options.rank, self.joined, bytes});
  }

  /// The first failure counts, and the hub tells the others.
  void set_failure(const PeerFailure& what) {
    if (failure) return;
    failure = what;
    has_failed = true;
    if (is_hub() || what.rank == options.rank) relay(-1, {FrameKind::failed, what.rank, 0, what.reason});
    changed.notify_all();
  }

  void call_back() {
    const std::scoped_lock lock(call_mutex);
    if (on_call) on_call();
  }

  void leave() {
    {
      const std::scoped_lock lock(mutex);
      if (!thread.joinable()) return;
      relay(-1, {FrameKind::left, options.rank, 0, ""});
      leaving = true;
    }
    wake_thread();
    thread.join();
  }
};

Rendezvous::Rendezvous(const RendezvousOptions& options) : impl_(std::make_unique<Impl>()) {
  if (options.size < 1 || options.rank < 0 || options.rank >= options.size) {
    fail(ErrorKind::bad_input, "rank {} of {}; allowed: at least 1 rank, ranks counted from 0", options.rank,
         counted(options.size, "rank"));
  }
  check_timeout(options.timeout);
  impl_->options = options;
  impl_->members = std::vector<Member>(static_cast<std::size_t>(options.size));
  if (options.size == 1) return;
  auto connections = options.rank == 0 ? rendezvous::gather_members(options) : rendezvous::join_hub(options);
  for (std::size_t rank = 0; rank < connections.size(); ++rank) {
    impl_->members[rank].connection = std::move(connections[rank]);
  }
  impl_->thread = std::thread([impl = impl_.get()] { impl->serve(); });
  impl_->wake_thread();
}

Rendezvous::~Rendezvous() {
  impl_->leave();
}

int Rendezvous::rank() const {
  return impl_->options.rank;
}
int Rendezvous::size() const {
  return impl_->options.size;
}
std::chrono::milliseconds Rendezvous::timeout() const {
  return impl_->options.timeout;
}

std::int64_t Rendezvous::join(const std::string& bytes) {
  std::int64_t number = 0;
  {
    const std::scoped_lock lock(impl_->mutex);
    number = impl_->member(rank()).joined;
    if (impl_->is_hub()) {
      impl_->add_piece(0, number, bytes);
    } else {
      impl_->relay(-1, {FrameKind::gather, rank(), number, bytes});
      impl_->member(rank()).joined = number + 1;
    }
  }
  impl_->wake_thread();
  return number;
}

std::optional<std::vector<std::string>> Rendezvous::result(std::int64_t number) {
  const std::scoped_lock lock(impl_->mutex);
  const auto found = impl_->results.find(number);
  if (found == impl_->results.end()) return std::nullopt;
  auto texts = std::move(found->second);
  impl_->results.erase(found);
  return texts;
}

std::vector<std::string> Rendezvous::all_gather(const std::string& bytes) {
  check_failure(*this);
  const std::int64_t number = join(bytes);
  const auto deadline = Clock::now() + timeout();
  while (true) {
    if (auto texts = result(number)) return *std::move(texts);
    check_failure(*this);
    const int missing = missing_in(number);
    // Who leaves has said all it had to before: a result that is not here now won't come.
    const bool left = has_left(missing);
    if (auto texts = result(number)) return *std::move(texts);
    if (left) {
      fail_group(*this, fmt::format("rank {} waits for rank {} to join agreement {}, but rank {} has left the group",
                                    rank(), missing, number, missing));
    }
    // The hub knows best who is late: it gives up first, and its sentence reaches the others.
    if (Clock::now() >= deadline + (rank() == 0 ? std::chrono::milliseconds(0) : kGrace)) {
      fail_group(*this, late_text(*this, missing, fmt::format("to join agreement {}", number)));
    }
    std::unique_lock lock(impl_->mutex);
    if (!impl_->results.contains(number) && !impl_->failure) impl_->changed.wait_for(lock, kPulse / 5);
  }
}

int Rendezvous::missing_in(std::int64_t number) const {
  const std::scoped_lock lock(impl_->mutex);
  for (int rank = 0; rank < impl_->options.size; ++rank) {
    if (impl_->member(rank).joined <= number) return rank;
  }
  return 0;  // the hub has not passed the result on
}

void Rendezvous::set_progress(std::int64_t step) {
  const std::scoped_lock lock(impl_->mutex);
  impl_->member(rank()).progress = step;
}

std::pair<int, std::int64_t> Rendezvous::slowest() const {
  const std::scoped_lock lock(impl_->mutex);
  const auto least = std::min_element(impl_->members.begin(), impl_->members.end(),
                                      [](const Member& a, const Member& b) { return a.progress < b.progress; });
  return {static_cast<int>(least - impl_->members.begin()), least->progress};
}

void Rendezvous::abort(const std::string& reason) noexcept {
  try {
    bool first = false;
    {
      const std::scoped_lock lock(impl_->mutex);
      first = !impl_->failure.has_value();
      impl_->set_failure({rank(), reason});
    }
    impl_->wake_thread();
    if (first) impl_->call_back();
  } catch (const std::exception&) {  // no memory for the message: the others will see this process end
    impl_->has_failed = true;
  }
}

std::optional<PeerFailure> Rendezvous::failure() const {
  const std::scoped_lock lock(impl_->mutex);
  return impl_->failure;
}

bool Rendezvous::failed() const noexcept {
  return impl_->has_failed;
}

bool Rendezvous::waits_in_agreement(int other) const {
  const std::scoped_lock lock(impl_->mutex);
  return impl_->member(other).joined > impl_->member(rank()).joined;
}

bool Rendezvous::has_left(int rank) const {
  const std::scoped_lock lock(impl_->mutex);
  return impl_->member(rank).left;
}

void Rendezvous::on_failure(std::function<void()> call) {
  {
    const std::scoped_lock lock(impl_->call_mutex);
    impl_->on_call = std::move(call);
  }
  if (failed()) impl_->call_back();
}

void check_failure(const Rendezvous& rendezvous) {
  if (!rendezvous.failed()) return;
  if (const auto failure = rendezvous.failure()) throw AbortEcho(failure->rank, failure->reason);
}

void fail_group(Rendezvous& rendezvous, const std::string& reason) {
  check_failure(rendezvous);
  rendezvous.abort(reason);
  throw Error(ErrorKind::transport, reason);
}

std::string elsewhere_text(const Rendezvous& rendezvous, int peer, const std::string& what) {
  return fmt::format(
      "rank {} waits for rank {} {}, but rank {} waits to agree on another problem: all ranks of a group have the same "
      "calls in the same order",
      rendezvous.rank(), peer, what, peer);
}

std::string late_text(const Rendezvous& rendezvous, int peer, const std::string& what) {
  return fmt::format("rank {} waited {} s for rank {} {}", rendezvous.rank(),
                     rendezvous::in_seconds(rendezvous.timeout()), peer, what);
}

}  // namespace rotunda
