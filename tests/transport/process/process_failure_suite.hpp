// What transports between processes do when a rank fails: they learn of it through the rendezvous.
#pragma once

#include "transport/transport_suite.hpp"

namespace rotunda::testing {

/// Parameter: the transport, with ranks as threads of this process.
class ProcessFailureSuite : public ::testing::TestWithParam<TransportCase> {
 protected:
  [[nodiscard]] Group make_group(int ranks, const LocalOptions& options) const {
    return GetParam().make_group(ranks, options);
  }
};

/// Calls make(options of the rank) for every rank, each in its own thread: what makes an end of a group is collective.
[[nodiscard]] Group make_ends(int ranks, const LocalOptions& options,
                              const std::function<std::unique_ptr<Transport>(const ProcessOptions&)>& make);

/// What every rank's body threw, by rank.
[[nodiscard]] std::vector<std::string> texts_of(Group& group, const std::function<void(Transport&)>& body);

}  // namespace rotunda::testing
