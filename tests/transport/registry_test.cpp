// Transports by name, and the ends of those whose ranks are processes.
#include "transport/registry.hpp"

#include <gtest/gtest.h>

#include <functional>
#include <thread>

#include "base/fail.hpp"
#include "support/error_test.hpp"
#include "transport/process/forked_ranks.hpp"

namespace rotunda::testing {
namespace {

using namespace std::chrono_literals;

using Make = std::function<void(const ProcessOptions&)>;

/// What make(options) throws.
std::string refusal(ErrorKind kind, const Make& make, const ProcessOptions& options) {
  try {
    make(options);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), kind) << error.what();
    return error.what();
  }
  return "nothing";
}

/// The same by rank, of three ranks that are threads here.
std::vector<std::string> refusals(ErrorKind kind, const Make& make) {
  const std::string address = unix_address();
  std::vector<std::string> texts(3);
  std::vector<std::jthread> threads(texts.size());
  for (int rank = 0; rank < 3; ++rank) {
    const auto at = static_cast<std::size_t>(rank);
    const ProcessOptions options{{rank, 3, rank, address, "test"}, 20s, Device{}, {}};
    threads[at] = std::jthread([&, at, options] { texts[at] = refusal(kind, make, options); });
  }
  threads.clear();
  return texts;
}

std::unique_ptr<Transport> make_nothing(const ProcessOptions& options, std::unique_ptr<Rendezvous>& rendezvous) {
  if (options.group.rank == 1) fail(ErrorKind::transport, "no paper");
  (void)rendezvous->all_gather("");  // not to be
  return nullptr;
}

TransportEntry post_office() {
  return {.name = "post",
          .description = "letters",
          .here = {.make = make_nothing, .library = "stamps"},
          .processes = true,
          .memory = Device::Kind::cpu};
}

TEST(Registry, OnlyProcessesHaveMakers) {
  EXPECT_EQ(find_transport("pigeon"), nullptr);
  for (const TransportEntry& entry : transports()) {
    EXPECT_EQ(find_transport(entry.name), &entry);
    EXPECT_EQ(entry.here.make != nullptr, entry.processes && entry.available()) << entry.name;
  }
}

TEST(Registry, AnEntrySaysWhatCarriesItOrWhatItLacks) {
  TransportEntry entry = post_office();
  EXPECT_EQ(entry.text(), "letters, stamps");
  entry.here = {.missing = "no post office"};
  EXPECT_EQ(entry.text(), "letters: no post office");
  EXPECT_EQ(entry.refuse(Device{}), "");
  EXPECT_EQ(entry.refuse(cuda_device(1)), "transport post moves memory of the host, not of cuda:1");
}

TEST(ProcessTransport, NamesThatAreNoneOfProcessesAreRefused) {
  for (const char* name : {"local", "callback", "pigeon"}) {
    EXPECT_ERROR((void)make_process_transport(name, {}), ErrorKind::bad_input, "is none of processes; allowed: ipc, ");
  }
}

TEST(ProcessTransport, ADeviceThatIsNotThereIsRefused) {
  for (const TransportEntry& entry : transports()) {
    if (!entry.processes) continue;
    ProcessOptions options{{0, 1, 0, "", "test"}, 20s, cuda_device(99), {}};
    EXPECT_ERROR((void)make_process_transport(entry.name, options), ErrorKind::unsupported, "rank 0 can't take part");
    options.device = {};
    EXPECT_ERROR((void)make_process_transport(entry.name, options), ErrorKind::unsupported, entry.name);
  }
}

TEST(ProcessTransport, WhatOneRankLacksIsRefusedAlikeOnAll) {
  const auto texts = refusals(ErrorKind::unsupported, [](const ProcessOptions& options) {
    TransportEntry entry = post_office();
    if (options.group.rank == 1) entry.here = {.missing = "no post office"};
    (void)make_process_transport(entry, options);
  });
  for (const auto& text : texts) EXPECT_EQ(text, "rank 1 can't take part: transport post: no post office");
}

TEST(ProcessTransport, AMakerThatFailsOnOneRankEndsTheOthers) {
  const auto texts = refusals(ErrorKind::transport, [](const ProcessOptions& options) {
    (void)make_process_transport(post_office(), options);
  });
  EXPECT_EQ(texts[1], "no paper");
  for (const int rank : {0, 2}) EXPECT_EQ(texts[static_cast<std::size_t>(rank)], "rank 1 failed: no paper");
}

}  // namespace
}  // namespace rotunda::testing
