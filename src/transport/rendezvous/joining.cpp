#include "transport/rendezvous/joining.hpp"

#include <algorithm>
#include <optional>
#include <string>

#include "base/fail.hpp"

namespace rotunda::rendezvous {
namespace {

/// How long one that connects may take to say who it is: strangers say nothing.
constexpr auto kHello = std::chrono::seconds(5);

/// Nothing where the other side closes or the deadline comes first.
std::optional<Frame> next_frame(Connection& connection, Clock::time_point deadline) {
  while (true) {
    if (auto frame = connection.take()) return frame;
    if (!wait_for(connection.descriptor(), false, deadline)) return std::nullopt;
    if (!connection.read()) return connection.take();
  }
}

void refuse(Connection& connection, const std::string& why) {
  connection.send(encode({FrameKind::refused, 0, 0, why}));
  (void)connection.flush();
}

/// The hub while the others come.
class Gathering {
 public:
  explicit Gathering(const RendezvousOptions& options)
      : options_(options), members_(static_cast<std::size_t>(options.size)) {}

  Connections run() {
    const Clock::time_point deadline = Clock::now() + options_.timeout;
    const Descriptor listener = listen_at(options_.address);
    try {
      for (int missing = options_.size - 1; missing > 0;) {
        auto socket = accept_at(listener, deadline);
        if (!socket) throw Error(ErrorKind::transport, missing_text());
        missing -= take_member(std::move(*socket), deadline) ? 1 : 0;
      }
    } catch (const Error& error) {
      remove_address(options_.address);
      for (const auto& member : members_) {
        if (member != nullptr) refuse(*member, error.what());
      }
      throw;
    }
    remove_address(options_.address);
    const auto welcome = encode({FrameKind::welcome, 0, 0, ""});
    for (std::size_t rank = 1; rank < members_.size(); ++rank) members_[rank]->send(welcome);
    return std::move(members_);
  }

 private:
  [[nodiscard]] std::string missing_text() const {
    std::string ranks;
    for (std::size_t rank = 1; rank < members_.size(); ++rank) {
      if (members_[rank] == nullptr) ranks += fmt::format("{}{}", ranks.empty() ? "" : ", ", rank);
    }
    return fmt::format("rank 0 waited {} s at {} for rank {} to join", in_seconds(options_.timeout), options_.address,
                       ranks);
  }

  /// False for a stranger.
  bool take_member(Descriptor socket, Clock::time_point deadline) {
    auto connection = std::make_unique<Connection>(std::move(socket));
    std::optional<Frame> hello;
    try {
      hello = next_frame(*connection, std::min(deadline, Clock::now() + kHello));
    } catch (const Error&) {  // speaks something else
    }
    if (!hello || hello->kind != FrameKind::hello) return false;
    if (const std::string why = fault_of(*hello); !why.empty()) {
      refuse(*connection, why);
      throw Error(ErrorKind::transport, why);
    }
    members_[static_cast<std::size_t>(hello->rank)] = std::move(connection);
    return true;
  }

  /// Why one that says this can't be a member, or nothing.
  [[nodiscard]] std::string fault_of(const Frame& hello) const {
    if (hello.number != options_.size) {
      return fmt::format("rank {} was started as one of {}, rank 0 as one of {}", hello.rank,
                         counted(hello.number, "rank"), options_.size);
    }
    const bool is_other = hello.rank > 0 && hello.rank < options_.size;
    if (is_other && members_[static_cast<std::size_t>(hello.rank)] == nullptr) return "";
    return fmt::format("two processes say that they are rank {}", hello.rank);
  }

  const RendezvousOptions& options_;
  Connections members_;
};

}  // namespace

Connections gather_members(const RendezvousOptions& options) {
  return Gathering(options).run();
}

Connections join_hub(const RendezvousOptions& options) {
  const Clock::time_point deadline = Clock::now() + options.timeout;
  auto connection = std::make_unique<Connection>(connect_to(options.address, options.rank, options.timeout));
  connection->send(encode({FrameKind::hello, options.rank, options.size, ""}));
  (void)connection->flush();
  const auto answer = next_frame(*connection, deadline);
  if (answer && answer->kind == FrameKind::refused) throw Error(ErrorKind::transport, answer->payload);
  if (!answer) {
    fail(ErrorKind::transport, "rank {} reached rank 0 at {}, but the group was not complete within {} s", options.rank,
         options.address, in_seconds(options.timeout));
  }
  Connections result(static_cast<std::size_t>(options.size));
  result.front() = std::move(connection);
  return result;
}

}  // namespace rotunda::rendezvous
