#include "transport/process/forked_ranks.hpp"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <exception>

namespace rotunda::testing {
namespace {

struct Child {
  pid_t process = 0;
  int pipe = -1;
};

[[noreturn]] void be_rank(const RendezvousOptions& options, int pipe,
                          const std::function<std::string(Rendezvous&)>& body) {
  std::string text;
  try {
    Rendezvous rendezvous(options);
    text = body(rendezvous);
  } catch (const std::exception& error) {
    text = error.what();
  }
  (void)!::write(pipe, text.data(), text.size());
  ::_exit(0);
}

}  // namespace

std::vector<Ending> fork_ranks(int ranks, const std::string& address, std::chrono::milliseconds timeout,
                               const std::function<std::string(Rendezvous&)>& body) {
  const auto begin = std::chrono::steady_clock::now();
  std::vector<Child> children;
  for (int rank = 0; rank < ranks; ++rank) {
    std::array<int, 2> ends{};
    if (::pipe(ends.data()) != 0) throw std::runtime_error("cannot make a pipe");
    const pid_t process = ::fork();
    if (process == 0) be_rank({rank, ranks, address, timeout}, ends[1], body);
    ::close(ends[1]);
    children.push_back({process, ends[0]});
  }
  std::vector<Ending> endings;
  for (const Child& child : children) {
    Ending ending;
    std::array<char, 4096> chunk{};
    for (ssize_t got = 0; (got = ::read(child.pipe, chunk.data(), chunk.size())) > 0;) {
      ending.text.append(chunk.data(), static_cast<std::size_t>(got));
    }
    ::close(child.pipe);
    int status = 0;
    ::waitpid(child.process, &status, 0);
    ending.status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    ending.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    endings.push_back(ending);
  }
  return endings;
}

std::string unix_address() {
  static std::atomic<int> number = 0;
  return fmt::format("unix:/tmp/rotunda-test-{}-{}.sock", ::getpid(), number++);
}

std::string tcp_address() {
  // The system picks a port; SO_REUSEADDR lets the hub have it right after.
  const int socket = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  ::bind(socket, reinterpret_cast<const sockaddr*>(&address), size);
  ::getsockname(socket, reinterpret_cast<sockaddr*>(&address), &size);
  ::close(socket);
  return fmt::format("127.0.0.1:{}", ntohs(address.sin_port));
}

bool has_loopback() {
  const int socket = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(9);  // nobody need be there: a refusal is an answer
  const int result = ::connect(socket, reinterpret_cast<const sockaddr*>(&address), sizeof address);
  const bool answered = result == 0 || errno == ECONNREFUSED;
  ::close(socket);
  return answered;
}

}  // namespace rotunda::testing
