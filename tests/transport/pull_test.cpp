// What a pull transport says and waits for, with ranks as threads and host memory.
#include "transport/process/host_mover.hpp"
#include "transport/process/process_failure_suite.hpp"
#include "transport/process/pull_transport.hpp"
#include "transport/registry.hpp"

namespace rotunda::testing {
namespace {

std::unique_ptr<Transport> make(const ProcessOptions& options, std::unique_ptr<Rendezvous>& rendezvous) {
  auto mailbox = std::make_unique<process::Mailbox>(*rendezvous);
  return std::make_unique<process::PullTransport>("pull", options, std::move(rendezvous), std::move(mailbox),
                                                  std::make_unique<HostMover>());
}

const TransportEntry kEntry{
    .name = "pull", .description = "", .here = {.make = make}, .processes = true, .memory = Device::Kind::cpu};

Group make_pull_group(int ranks, const LocalOptions& options) {
  return make_ends(ranks, options, [](const ProcessOptions& end) { return make_process_transport(kEntry, end); });
}

const TransportCase kPull{"pull", make_pull_group};

INSTANTIATE_TEST_SUITE_P(Pull, TransportSuite, ::testing::Combine(::testing::Values(kPull), ::testing::Range(1, 6)),
                         suite_name);
INSTANTIATE_TEST_SUITE_P(Pull, ProcessFailureSuite, ::testing::Values(kPull));

}  // namespace
}  // namespace rotunda::testing
