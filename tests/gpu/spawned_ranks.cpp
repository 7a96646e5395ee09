#include "gpu/spawned_ranks.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <map>

#include "base/environment.hpp"

namespace rotunda::testing {
namespace {

using Clock = std::chrono::steady_clock;

std::map<std::string, RankBody>& bodies() {
  static std::map<std::string, RankBody> all;
  return all;
}

/// In a spawned process no test runs, but the body.
class SpawnedRank : public ::testing::Environment {
 public:
  void SetUp() override {
    const auto body = environment("ROTUNDA_TEST_BODY");
    if (!body) return;
    std::string text;
    try {
      ProcessOptions options;
      options.group = find_process_group().value();
      options.timeout = std::chrono::milliseconds(std::stoi(*environment("ROTUNDA_TEST_TIMEOUT")));
      options.device = cuda_device(std::stoi(*environment("ROTUNDA_TEST_DEVICE")));
      text = bodies().at(*body)(options, *environment("ROTUNDA_TEST_TRANSPORT"));
    } catch (const std::exception& error) {
      text = error.what();
    }
    (void)!::write(STDERR_FILENO, text.data(), text.size());
    ::_exit(0);
  }
};

const auto* const kSpawnedRank = ::testing::AddGlobalTestEnvironment(new SpawnedRank);

struct Child {
  pid_t process = 0;
  int pipe = -1;
};

Child spawn(const std::vector<std::string>& settings) {
  std::vector<std::string> all;
  for (char** each = environ; *each != nullptr; ++each) {
    if (!std::string_view(*each).starts_with("GTEST_")) all.emplace_back(*each);
  }
  all.insert(all.end(), settings.begin(), settings.end());
  std::vector<char*> variables;
  for (std::string& each : all) variables.push_back(each.data());
  variables.push_back(nullptr);
  std::string name = "rank", filter = "--gtest_filter=*";
  std::array<char*, 3> arguments{name.data(), filter.data(), nullptr};
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) throw std::runtime_error("cannot make a pipe");
  const pid_t process = ::vfork();
  if (process == 0) {
    ::dup2(ends[1], STDERR_FILENO);
    ::execve("/proc/self/exe", arguments.data(), variables.data());
    ::_exit(70);
  }
  ::close(ends[1]);
  return {process, ends[0]};
}

SpawnedEnding wait_for(const Child& child, Clock::time_point begin, Clock::time_point deadline) {
  SpawnedEnding ending;
  std::array<char, 4096> chunk{};
  pollfd polled{child.pipe, POLLIN, 0};
  while (true) {
    if (Clock::now() >= deadline) ::kill(child.process, SIGKILL);
    if (::poll(&polled, 1, 100) <= 0) continue;
    const ssize_t got = ::read(child.pipe, chunk.data(), chunk.size());
    if (got <= 0) break;
    ending.text.append(chunk.data(), static_cast<std::size_t>(got));
  }
  ::close(child.pipe);
  int status = 0;
  ::waitpid(child.process, &status, 0);
  ending.status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  ending.seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  return ending;
}

}  // namespace

RegisterBody::RegisterBody(const std::string& name, RankBody body) {
  bodies()[name] = std::move(body);
}

std::vector<SpawnedEnding> spawn_ranks(const std::string& body, const std::string& transport, int ranks,
                                       const std::vector<int>& devices, std::chrono::milliseconds timeout,
                                       std::chrono::seconds limit) {
  static int jobs = 0;
  const std::string address = fmt::format("unix:/tmp/rotunda-gpu-test-{}-{}.sock", ::getpid(), jobs++);
  const auto begin = Clock::now();
  std::vector<Child> children;
  for (int rank = 0; rank < ranks; ++rank) {
    children.push_back(
        spawn({fmt::format("RANK={}", rank), fmt::format("WORLD_SIZE={}", ranks), fmt::format("LOCAL_RANK={}", rank),
               fmt::format("LOCAL_WORLD_SIZE={}", ranks), "MASTER_ADDR=" + address, "CUDA_DEVICE_MAX_CONNECTIONS=32",
               "ROTUNDA_TEST_BODY=" + body, "ROTUNDA_TEST_TRANSPORT=" + transport,
               fmt::format("ROTUNDA_TEST_TIMEOUT={}", timeout.count()),
               fmt::format("ROTUNDA_TEST_DEVICE={}", devices[static_cast<std::size_t>(rank) % devices.size()])}));
  }
  std::vector<SpawnedEnding> endings;
  for (const Child& child : children) endings.push_back(wait_for(child, begin, begin + limit));
  return endings;
}

}  // namespace rotunda::testing
