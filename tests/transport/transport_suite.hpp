// The suite that every transport passes. A new one joins by instantiating it with a TransportCase (local_test.cpp shows
// the few lines), for groups of 1 to 8 ranks.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "rotunda/transport.hpp"

namespace rotunda::testing {

using Group = std::vector<std::unique_ptr<Transport>>;

struct TransportCase {
  std::string name;
  std::function<Group(int ranks, const LocalOptions& options)> make_group;
};

/// Parameters: the transport and the number of ranks.
class TransportSuite : public ::testing::TestWithParam<std::tuple<TransportCase, int>> {
 protected:
  [[nodiscard]] int ranks() const { return std::get<1>(GetParam()); }
  [[nodiscard]] Group make_group(const LocalOptions& options = {}) const {
    return std::get<0>(GetParam()).make_group(ranks(), options);
  }
};

inline std::string suite_name(const ::testing::TestParamInfo<TransportSuite::ParamType>& info) {
  return std::get<0>(info.param).name + "_" + std::to_string(std::get<1>(info.param));
}

}  // namespace rotunda::testing
