#include "cli/launch.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>

#include "base/fail.hpp"
#include "cli/setup.hpp"

namespace rotunda::cli {
namespace {

using Clock = std::chrono::steady_clock;

/// What a rank that learns of a failure needs beyond the timeout, to end in order.
constexpr auto kGrace = std::chrono::seconds(10);
constexpr auto kPause = std::chrono::milliseconds(20);

struct Child {
  pid_t process = 0;
  int errors = -1;  ///< its standard error
  std::string text;
  bool ended = false;
  int status = 0, signal = 0;
  int order = 0;  ///< in which they ended

  [[nodiscard]] bool failed() const { return ended && (signal != 0 || status != 0); }
};

/// The child's side between fork and exec: only what is safe there.
[[noreturn]] void become(char* const* arguments, char* const* variables, int errors, pid_t parent) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);  // nobody is left behind
  if (::getppid() != parent) ::_exit(70);
  ::dup2(errors, STDERR_FILENO);
  ::execve("/proc/self/exe", arguments, variables);
  ::_exit(70);
}

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> result;
  for (std::string& text : texts) result.push_back(text.data());
  result.push_back(nullptr);
  return result;
}

/// The environment of a rank.
std::vector<std::string> variables_of(int rank, int ranks, const std::string& address) {
  std::vector<std::pair<std::string, std::string>> ours{{"RANK", std::to_string(rank)},
                                                        {"WORLD_SIZE", std::to_string(ranks)},
                                                        {"LOCAL_RANK", std::to_string(rank)},
                                                        {"LOCAL_WORLD_SIZE", std::to_string(ranks)},
                                                        {"MASTER_ADDR", address},
                                                        {"MASTER_PORT", ""}};
  // Streams that wait for other processes share no queue of the hardware with others.
  if (std::getenv("CUDA_DEVICE_MAX_CONNECTIONS") == nullptr) ours.emplace_back("CUDA_DEVICE_MAX_CONNECTIONS", "32");
  std::vector<std::string> result;
  for (char** each = environ; *each != nullptr; ++each) {
    const std::string text = *each;
    const std::string name = text.substr(0, text.find('='));
    if (std::none_of(ours.begin(), ours.end(), [&](const auto& own) { return own.first == name; })) {
      result.push_back(text);
    }
  }
  for (const auto& [name, value] : ours) result.push_back(name + "=" + value);
  return result;
}

Child start(std::vector<std::string> command, int rank, int ranks, const std::string& address) {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) fail(ErrorKind::internal, "cannot make a pipe: {}", std::strerror(errno));
  std::vector<std::string> variables = variables_of(rank, ranks, address);
  const std::vector<char*> arguments = pointers(command), environment = pointers(variables);
  const pid_t parent = ::getpid();
  const pid_t process = ::fork();
  if (process == 0) become(arguments.data(), environment.data(), ends[1], parent);
  ::close(ends[1]);
  if (process < 0) {
    ::close(ends[0]);
    fail(ErrorKind::unsupported, "cannot start the process of rank {}: {}", rank, std::strerror(errno));
  }
  Child child;
  child.process = process;
  child.errors = ends[0];
  return child;
}

/// Reads what the children say; rank 0's lines are passed on as they come.
void read_errors(std::vector<Child>& children) {
  std::vector<pollfd> polled;
  for (const Child& child : children) polled.push_back({child.errors, POLLIN, 0});
  if (::poll(polled.data(), polled.size(), static_cast<int>(kPause.count())) <= 0) return;
  std::array<char, 4096> chunk{};
  for (std::size_t i = 0; i < children.size(); ++i) {
    if (polled[i].revents == 0) continue;
    const ssize_t got = ::read(children[i].errors, chunk.data(), chunk.size());
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) {
      ::close(children[i].errors);
      children[i].errors = -1;
      continue;
    }
    children[i].text.append(chunk.data(), static_cast<std::size_t>(got));
    if (i == 0) (void)!::write(STDERR_FILENO, chunk.data(), static_cast<std::size_t>(got));
  }
}

void reap(std::vector<Child>& children, int& ended) {
  for (Child& child : children) {
    int status = 0;
    if (child.ended || ::waitpid(child.process, &status, WNOHANG) != child.process) continue;
    child.ended = true;
    child.order = ended++;
    child.status = WIFEXITED(status) ? WEXITSTATUS(status) : 0;
    child.signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
  }
}

void kill_rest(const std::vector<Child>& children) {
  for (const Child& child : children) {
    if (!child.ended) ::kill(child.process, SIGKILL);
  }
}

/// The rank to blame: one that was killed, else rank 0 where it says why, else the first to end that says why (one that
/// only learned of another's failure says nothing), else the first.
std::size_t guilty(const std::vector<Child>& children) {
  const auto badness = [&](std::size_t i) {
    const Child& child = children[i];
    if (!child.failed()) return 1'000'000;
    const int kind = child.signal != 0 ? 0 : child.text.empty() ? 2 : 1;
    return 10'000 * kind + (i == 0 ? 0 : 1 + child.order);
  };
  std::size_t worst = 0;
  for (std::size_t i = 1; i < children.size(); ++i) worst = badness(i) < badness(worst) ? i : worst;
  return worst;
}

int status_of(const std::vector<Child>& first_failed, const std::vector<Child>& children) {
  // Who was killed here, because it did not end, is not to blame.
  const std::size_t rank = guilty(first_failed);
  const Child& child = first_failed[rank];
  if (!child.failed()) return children.front().status;
  if (child.signal != 0) {
    fail(ErrorKind::transport, "rank {} failed: its process was killed by signal {} ({})", rank, child.signal,
         ::strsignal(child.signal));
  }
  if (rank != 0) (void)!::write(STDERR_FILENO, child.text.data(), child.text.size());
  if (child.text.empty() && child.status != 1) {
    fail(child.status == 4 ? ErrorKind::transport : ErrorKind::internal,
         "rank {} failed: its process ended with status {}", rank, child.status);
  }
  return child.status;
}

}  // namespace

bool needs_processes(const Options& options) {
  if (options.command != Command::run && options.command != Command::verify && options.command != Command::bench) {
    return false;
  }
  const auto asked = asked_transport(options.plan);
  return asked && asked->available && asked->processes;
}

void join_job(Options& options, const std::optional<ProcessGroup>& job) {
  if (!job) return;
  if (options.ranks && *options.ranks != job->size) {
    fail(ErrorKind::bad_input, "--ranks is {}, but {} has started this as rank {} of {}", *options.ranks, job->launcher,
         job->rank, job->size);
  }
  options.process = job;
  options.ranks = job->size;
  if (job->rank != 0) options.quiet = true;
}

int start_processes(const std::vector<std::string>& arguments, const Options& options) {
  std::vector<std::string> command{"rotunda"};
  command.insert(command.end(), arguments.begin(), arguments.end());
  return start_command(command, options.ranks_or_default(), options.timeout + kGrace);
}

int start_command(const std::vector<std::string>& command, int ranks, std::chrono::milliseconds patience) {
  const std::string address = fmt::format("unix:/tmp/rotunda-{}-{}.sock", ::getuid(), ::getpid());
  std::vector<Child> children;
  for (int rank = 0; rank < ranks; ++rank) children.push_back(start(command, rank, ranks, address));
  const auto any_failed = [&] {
    return std::any_of(children.begin(), children.end(), [](const Child& child) { return child.failed(); });
  };
  auto deadline = Clock::time_point::max();
  std::vector<Child> before_killing;
  int ended = 0;
  while (ended < ranks || std::any_of(children.begin(), children.end(), [](auto& c) { return c.errors >= 0; })) {
    read_errors(children);
    reap(children, ended);
    if (deadline == Clock::time_point::max() && any_failed()) deadline = Clock::now() + patience;
    if (Clock::now() < deadline || ended == ranks) continue;
    if (before_killing.empty()) before_killing = children;
    kill_rest(children);
  }
  return status_of(before_killing.empty() ? children : before_killing, children);
}

}  // namespace rotunda::cli
