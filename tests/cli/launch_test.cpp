// Processes that the command line starts: this test program starts itself.
#include "cli/launch.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <thread>

#include "support/error_test.hpp"

namespace rotunda::cli {
namespace {

using namespace std::chrono_literals;

constexpr const char* kBody = "ROTUNDA_TEST_LAUNCHED";

void say(const std::string& text) {
  (void)!::write(STDERR_FILENO, text.data(), text.size());
}

/// What a started process does instead of tests.
[[noreturn]] void be_rank(const std::string& body) {
  const ProcessGroup group = find_process_group().value();
  if (group.launcher != "rotunda" || !group.address.starts_with("unix:")) ::_exit(99);
  if (body == "fine" && group.rank == 0) fmt::print("size {}\n", group.size);
  std::fflush(stdout);
  const bool guilty = group.rank == 1;
  if (body == "dies" && guilty) std::raise(SIGKILL);
  if (body == "dies") ::_exit(4);  // has learned of it, and leaves the word to others
  if (body == "refuses" && guilty) say("rotunda: rank 1 has no device\n");
  if (body == "refuses") ::_exit(guilty ? 3 : 4);
  if (body == "all refuse") {
    say("rotunda: no such schedule\n");
    ::_exit(2);
  }
  if (body == "verdict") ::_exit(group.rank == 0 ? 1 : 0);
  if (body == "hangs" && guilty) ::_exit(5);
  if (body == "hangs") std::this_thread::sleep_for(600s);
  ::_exit(0);
}

class Launched : public ::testing::Environment {
 public:
  void SetUp() override {
    if (const char* body = std::getenv(kBody)) be_rank(body);
  }
};

const auto* const kLaunched = ::testing::AddGlobalTestEnvironment(new Launched);

struct Outcome {
  int status = 0;
  std::string error, errors, output;
};

/// patience: what the other ranks have to end, once one has failed.
Outcome launch(const char* body, int ranks, std::chrono::milliseconds patience = 60s) {
  ::setenv(kBody, body, 1);
  ::testing::internal::CaptureStderr();
  ::testing::internal::CaptureStdout();
  Outcome outcome;
  try {
    outcome.status = start_command({"cli_tests", "--gtest_filter=*"}, ranks, patience);
  } catch (const Error& error) {
    outcome.status = exit_status(error.kind());
    outcome.error = error.what();
  }
  outcome.errors = ::testing::internal::GetCapturedStderr();
  outcome.output = ::testing::internal::GetCapturedStdout();
  ::unsetenv(kBody);
  return outcome;
}

TEST(Launch, EverybodyIsFine) {
  for (const int ranks : {1, 3}) {
    const Outcome outcome = launch("fine", ranks);
    EXPECT_EQ(outcome.status, 0);
    EXPECT_EQ(outcome.errors, "");
    EXPECT_NE(outcome.output.find("size " + std::to_string(ranks)), std::string::npos) << outcome.output;
  }
}

TEST(Launch, AKilledRankIsNamed) {
  const Outcome outcome = launch("dies", 3);
  EXPECT_EQ(outcome.status, 4);
  EXPECT_EQ(outcome.error, "rank 1 failed: its process was killed by signal 9 (Killed)");
  EXPECT_EQ(outcome.errors, "");
}

TEST(Launch, TheErrorOfTheRankThatFailedIsPrinted) {
  const Outcome outcome = launch("refuses", 4);
  EXPECT_EQ(outcome.status, 3);
  EXPECT_EQ(outcome.errors, "rotunda: rank 1 has no device\n");
}

TEST(Launch, WhatAllSayIsPrintedOnce) {
  const Outcome outcome = launch("all refuse", 4);
  EXPECT_EQ(outcome.status, 2);
  EXPECT_EQ(outcome.errors, "rotunda: no such schedule\n");
}

TEST(Launch, AFailedVerificationIsNoFailureOfAProcess) {
  EXPECT_EQ(launch("verdict", 2).status, 1);
}

TEST(Launch, RanksThatHangAfterAFailureAreKilled) {
  const Outcome outcome = launch("hangs", 3, 100ms);
  EXPECT_EQ(outcome.status, exit_status(ErrorKind::internal));
  EXPECT_NE(outcome.error.find("rank 1 failed"), std::string::npos) << outcome.error;
}

TEST(Launch, AJobSaysHowManyRanks) {
  const ProcessGroup job{2, 4, 0, "unix:/tmp/x", "torchrun"};
  Options options;
  join_job(options, std::nullopt);
  EXPECT_FALSE(options.process.has_value());
  EXPECT_TRUE(options.is_first());
  join_job(options, job);
  EXPECT_EQ(options.ranks_or_default(), 4);
  EXPECT_TRUE(options.quiet);
  EXPECT_FALSE(options.is_first());
  Options other;
  other.ranks = 8;
  EXPECT_ERROR(join_job(other, job), ErrorKind::bad_input,
               "--ranks is 8, but torchrun has started this as rank 2 of 4");
}

TEST(Launch, OnlyTransportsOfProcessesNeedThem) {
  Options options;
  options.command = Command::verify;
  EXPECT_FALSE(needs_processes(options));
  options.plan.transport = "local";
  EXPECT_FALSE(needs_processes(options));
  options.plan.transport = "ipc";
  options.command = Command::explain;
  EXPECT_FALSE(needs_processes(options));
}

}  // namespace
}  // namespace rotunda::cli
