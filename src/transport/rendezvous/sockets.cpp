#include "transport/rendezvous/sockets.hpp"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <thread>

#include "base/fail.hpp"

namespace rotunda::rendezvous {
namespace {

constexpr const char* kUnix = "unix:";
constexpr std::uint32_t kMagic = 0x524f5431;  // "ROT1": a stranger that connects to the port says something else
constexpr std::int64_t kLargestFrame = std::int64_t{1} << 40;

struct Header {
  std::uint32_t magic = kMagic;
  FrameKind kind = FrameKind::hello;
  std::int32_t rank = 0;
  std::int32_t padding = 0;
  std::int64_t number = 0, bytes = 0;
};

bool is_unix(const std::string& address) {
  return address.starts_with(kUnix);
}

sockaddr_un unix_address(const std::string& address) {
  const std::string path = address.substr(std::strlen(kUnix));
  sockaddr_un result{};
  result.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof result.sun_path) {
    fail(ErrorKind::bad_input, "the rendezvous address '{}' has a path of {} characters; allowed: 1 to {}", address,
         path.size(), sizeof result.sun_path - 1);
  }
  std::memcpy(result.sun_path, path.c_str(), path.size() + 1);
  return result;
}

struct Host {
  std::string name, port;
};

Host host_of(const std::string& address) {
  const std::size_t colon = address.rfind(':');
  if (colon == std::string::npos || colon == 0 || colon + 1 == address.size()) {
    fail(ErrorKind::bad_input, "the rendezvous address is '{}'; allowed: unix:PATH or HOST:PORT", address);
  }
  return {address.substr(0, colon), address.substr(colon + 1)};
}

struct AddressList {
  addrinfo* first = nullptr;
  AddressList() = default;
  ~AddressList() {
    if (first != nullptr) ::freeaddrinfo(first);
  }
  AddressList(const AddressList&) = delete;
  AddressList& operator=(const AddressList&) = delete;
};

void set_options(int fd, bool tcp) {
  ::fcntl(fd, F_SETFL, ::fcntl(fd, F_GETFL) | O_NONBLOCK);
  const int on = 1;
  if (tcp) ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  // A host that vanishes closes nothing: the kernel asks after it.
  if (tcp) ::setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
}

/// One attempt; the error number, or 0.
int try_connect(int fd, const sockaddr* address, socklen_t length, Clock::time_point deadline) {
  if (::connect(fd, address, length) == 0) return 0;
  if (errno != EINPROGRESS) return errno;
  if (!wait_for(fd, true, deadline)) return ETIMEDOUT;
  int error = 0;
  socklen_t size = sizeof error;
  ::getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size);
  return error;
}

Descriptor try_unix(const std::string& address, std::string& reason) {
  const sockaddr_un to = unix_address(address);
  Descriptor socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int error = ::connect(socket.get(), reinterpret_cast<const sockaddr*>(&to), sizeof to) == 0 ? 0 : errno;
  reason = std::strerror(error);
  if (error != 0) socket.close();
  if (socket.open()) set_options(socket.get(), false);
  return socket;
}

Descriptor try_host(const std::string& address, std::string& reason, Clock::time_point deadline) {
  const auto [name, port] = host_of(address);
  AddressList list;
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  if (const int error = ::getaddrinfo(name.c_str(), port.c_str(), &hints, &list.first); error != 0) {
    reason = ::gai_strerror(error);
    return {};
  }
  for (const addrinfo* to = list.first; to != nullptr; to = to->ai_next) {
    Descriptor socket(::socket(to->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (!socket.open()) continue;
    set_options(socket.get(), true);
    const int error = try_connect(socket.get(), to->ai_addr, to->ai_addrlen, deadline);
    if (error == 0) return socket;
    reason = std::strerror(error);
  }
  return {};
}

Descriptor listen_unix(const std::string& address) {
  const sockaddr_un at = unix_address(address);
  ::unlink(at.sun_path);  // of an earlier job that died
  Descriptor socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (::bind(socket.get(), reinterpret_cast<const sockaddr*>(&at), sizeof at) != 0 ||
      ::chmod(at.sun_path, S_IRUSR | S_IWUSR) != 0 || ::listen(socket.get(), SOMAXCONN) != 0) {
    fail(ErrorKind::transport, "rank 0 can't listen at {}: {}", address, std::strerror(errno));
  }
  return socket;
}

Descriptor listen_host(const std::string& address) {
  const Host host = host_of(address);
  AddressList list;
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  if (const int error = ::getaddrinfo(nullptr, host.port.c_str(), &hints, &list.first); error != 0) {
    fail(ErrorKind::bad_input, "rank 0 can't listen at {}: {}", address, ::gai_strerror(error));
  }
  std::string reason = "no interface";
  for (const bool six : {true, false}) {  // an IPv6 socket takes IPv4 too
    for (const addrinfo* at = list.first; at != nullptr; at = at->ai_next) {
      if ((at->ai_family == AF_INET6) != six) continue;
      Descriptor socket(::socket(at->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
      if (!socket.open()) continue;
      const int on = 1, off = 0;
      ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
      if (six) ::setsockopt(socket.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
      if (::bind(socket.get(), at->ai_addr, at->ai_addrlen) == 0 && ::listen(socket.get(), SOMAXCONN) == 0) {
        return socket;
      }
      reason = std::strerror(errno);
    }
  }
  fail(ErrorKind::transport, "rank 0 can't listen at {}: {}", address, reason);
}

}  // namespace

void Descriptor::close() noexcept {
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
}

std::shared_ptr<const std::string> encode(const Frame& frame) {
  Header header;
  header.kind = frame.kind;
  header.rank = frame.rank;
  header.number = frame.number;
  header.bytes = static_cast<std::int64_t>(frame.payload.size());
  auto bytes = std::make_shared<std::string>();
  bytes->reserve(sizeof header + frame.payload.size());
  bytes->append(reinterpret_cast<const char*>(&header), sizeof header);
  bytes->append(frame.payload);
  return bytes;
}

bool Connection::flush() {
  while (!out_.empty()) {
    const std::string& bytes = *out_.front();
    const ssize_t sent = ::send(socket_.get(), bytes.data() + written_, bytes.size() - written_, MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0) return errno == EAGAIN || errno == EWOULDBLOCK;
    written_ += static_cast<std::size_t>(sent);
    if (written_ < bytes.size()) continue;
    out_.pop_front();
    written_ = 0;
  }
  return true;
}

bool Connection::read() {
  std::array<char, 65536> chunk{};
  while (true) {
    const ssize_t got = ::recv(socket_.get(), chunk.data(), chunk.size(), 0);
    if (got > 0) {
      in_.append(chunk.data(), static_cast<std::size_t>(got));
      continue;
    }
    if (got < 0 && errno == EINTR) continue;
    return got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK);
  }
}

std::optional<Frame> Connection::take() {
  Header header;
  if (in_.size() - taken_ < sizeof header) return std::nullopt;
  std::memcpy(&header, in_.data() + taken_, sizeof header);
  if (header.magic != kMagic || header.bytes < 0 || header.bytes > kLargestFrame) {
    fail(ErrorKind::transport, "a connection of the rendezvous speaks something else");
  }
  const auto whole = sizeof header + static_cast<std::size_t>(header.bytes);
  if (in_.size() - taken_ < whole) return std::nullopt;
  Frame frame{header.kind, header.rank, header.number, in_.substr(taken_ + sizeof header, whole - sizeof header)};
  taken_ += whole;
  if (taken_ == in_.size()) {
    in_.clear();
    taken_ = 0;
  } else if (taken_ > (std::size_t{1} << 20)) {
    in_.erase(0, taken_);
    taken_ = 0;
  }
  return frame;
}

void Connection::finish_writing() {
  if (open()) ::shutdown(socket_.get(), SHUT_WR);
}

bool wait_for(int descriptor, bool writing, Clock::time_point deadline) {
  while (true) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
    pollfd polled{descriptor, static_cast<short>(writing ? POLLOUT : POLLIN), 0};
    const int ready = ::poll(&polled, 1, static_cast<int>(std::clamp<std::int64_t>(left + 1, 0, 1 << 30)));
    if (ready > 0) return true;
    if (Clock::now() >= deadline) return false;
  }
}

Descriptor listen_at(const std::string& address) {
  Descriptor listener = is_unix(address) ? listen_unix(address) : listen_host(address);
  set_options(listener.get(), false);
  return listener;
}

std::optional<Descriptor> accept_at(const Descriptor& listener, Clock::time_point deadline) {
  while (wait_for(listener.get(), false, deadline)) {
    Descriptor socket(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (!socket.open()) continue;  // gone again
    sockaddr_storage from{};
    socklen_t size = sizeof from;
    ::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&from), &size);
    set_options(socket.get(), from.ss_family != AF_UNIX);
    return socket;
  }
  return std::nullopt;
}

Descriptor connect_to(const std::string& address, int rank, std::chrono::milliseconds timeout) {
  const Clock::time_point deadline = Clock::now() + timeout;
  auto pause = std::chrono::milliseconds(5);
  while (true) {
    std::string reason;
    Descriptor socket = is_unix(address) ? try_unix(address, reason) : try_host(address, reason, deadline);
    if (socket.open()) return socket;
    if (Clock::now() + pause >= deadline) {
      fail(ErrorKind::transport, "rank {} could not reach rank 0 at {} within {} s: {}", rank, address,
           in_seconds(timeout), reason);
    }
    std::this_thread::sleep_for(pause);
    pause = std::min(2 * pause, std::chrono::milliseconds(200));
  }
}

void remove_address(const std::string& address) noexcept {
  if (is_unix(address)) ::unlink(address.c_str() + std::strlen(kUnix));
}

}  // namespace rotunda::rendezvous
