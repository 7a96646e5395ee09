// Sockets of a rendezvous: listening, connecting, and whole frames over them.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <utility>

namespace rotunda::rendezvous {

using Clock = std::chrono::steady_clock;

/// For messages.
[[nodiscard]] inline double in_seconds(std::chrono::milliseconds time) {
  return std::chrono::duration<double>(time).count();
}

/// A file descriptor that closes itself. Movable.
class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() { close(); }
  Descriptor(Descriptor&& other) noexcept : fd_(other.fd_) { other.fd_ = -1; }
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;

  [[nodiscard]] int get() const { return fd_; }
  [[nodiscard]] bool open() const { return fd_ >= 0; }
  void close() noexcept;

 private:
  int fd_ = -1;
};

enum class FrameKind : std::uint32_t { hello, welcome, refused, gather, gathered, progress, failed, left };

struct Frame {
  FrameKind kind = FrameKind::hello;
  std::int32_t rank = 0;
  std::int64_t number = 0;
  std::string payload;
};

/// Frames over a non-blocking socket. What can't be written at once is kept.
class Connection {
 public:
  explicit Connection(Descriptor socket) : socket_(std::move(socket)) {}

  [[nodiscard]] int descriptor() const { return socket_.get(); }
  [[nodiscard]] bool open() const { return socket_.open(); }
  [[nodiscard]] bool wants_to_write() const { return !out_.empty(); }
  /// Queues a frame; flush() writes.
  void send(std::shared_ptr<const std::string> encoded) { out_.push_back(std::move(encoded)); }
  /// Writes what the socket takes. False: the connection is broken.
  bool flush();
  /// Reads what is there. False: the other side has closed it, or it is broken; frames may still be taken.
  bool read();
  /// The next whole frame. @throws Error transport for bytes that are no frame
  std::optional<Frame> take();
  /// No more writing: the other side reads to the end.
  void finish_writing();
  void close() { socket_.close(); }

 private:
  Descriptor socket_;
  std::string in_;
  std::size_t taken_ = 0;  ///< bytes of in_ that have been taken
  std::deque<std::shared_ptr<const std::string>> out_;
  std::size_t written_ = 0;  ///< of the first in out_
};

[[nodiscard]] std::shared_ptr<const std::string> encode(const Frame& frame);

/// Waits until the descriptor can be read, or written; false after the deadline.
bool wait_for(int descriptor, bool writing, Clock::time_point deadline);

/// Listens at "unix:PATH" or "HOST:PORT" (every interface). @throws Error bad_input, transport
[[nodiscard]] Descriptor listen_at(const std::string& address);
/// Takes a connection, or none before the deadline.
[[nodiscard]] std::optional<Descriptor> accept_at(const Descriptor& listener, Clock::time_point deadline);
/// Connects, again and again until the deadline: the listener may come later. @throws Error bad_input; transport with
/// the last reason
[[nodiscard]] Descriptor connect_to(const std::string& address, int rank, std::chrono::milliseconds timeout);
/// Removes a Unix socket's file; nothing for other addresses.
void remove_address(const std::string& address) noexcept;

}  // namespace rotunda::rendezvous
