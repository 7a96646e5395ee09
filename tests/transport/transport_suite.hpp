// The suites that every transport passes. A new one joins by instantiating both with a TransportCase: local_test.cpp
// shows the few lines.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "rotunda/transport.hpp"

namespace rotunda::testing {

using Group = std::vector<std::unique_ptr<Transport>>;

struct TransportCase {
  std::string name;
  std::function<Group(int ranks, const LocalOptions& options)> make_group;

  friend void PrintTo(const TransportCase& value, std::ostream* out) { *out << value.name; }
};

/// Parameters: the transport and the number of ranks.
class TransportSuite : public ::testing::TestWithParam<std::tuple<TransportCase, int>> {
 protected:
  [[nodiscard]] int ranks() const { return std::get<1>(GetParam()); }
  [[nodiscard]] Group make_group(const LocalOptions& options = {}) const {
    return std::get<0>(GetParam()).make_group(ranks(), options);
  }
};

/// What happens when a rank fails; groups of at least 2 ranks.
class TransportFailureSuite : public TransportSuite {};

inline std::string suite_name(const ::testing::TestParamInfo<TransportSuite::ParamType>& info) {
  return std::get<0>(info.param).name + "_" + std::to_string(std::get<1>(info.param));
}

/// Floats first, first + 1, … with a view over them.
struct Data {
  std::vector<float> values;
  TensorView view;

  Data(Layout layout, std::int64_t b, std::int64_t s, std::int64_t h, std::int64_t d, float first = -1)
      : values(static_cast<std::size_t>(b * s * h * d)),
        view(make_view(values.data(), DType::fp32, layout, b, s, h, d)) {
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = first + static_cast<float>(i);
  }
  Data(Data&&) = default;
  Data(const Data&) = delete;  // the view would be the original's
};

/// [1, elements, 1, 1]
inline Data flat(std::int64_t elements, float first = -1) {
  return {Layout::bshd, 1, elements, 1, 1, first};
}

inline void nap(int milliseconds) {
  std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
}

}  // namespace rotunda::testing
