// What every transport between processes with CUDA devices passes: ipc_test.cpp and nccl_test.cpp instantiate it.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "gpu/distributed_on_device.hpp"
#include "gpu/spawned_ranks.hpp"

namespace rotunda::testing {

struct ProcessCase {
  std::string transport;
  int ranks = 2;
  bool own_devices = false;  ///< a device for each rank, not those of ROTUNDA_TEST_DEVICES by turns

  friend void PrintTo(const ProcessCase& value, std::ostream* out) { *out << value.transport << " " << value.ranks; }
};

class ProcessSuite : public ::testing::TestWithParam<ProcessCase> {
 protected:
  void SetUp() override;
  [[nodiscard]] std::vector<SpawnedEnding> spawn(const std::string& body, std::chrono::milliseconds timeout) const {
    return spawn_ranks(body, GetParam().transport, GetParam().ranks, devices_, timeout);
  }
  /// Rank 1 fails: all others end within `limit` seconds with an error that names it.
  void expect_rank_1_named(const std::string& body, std::chrono::milliseconds timeout, double limit) const;

 private:
  std::vector<int> devices_;
};

inline std::string process_name(const ::testing::TestParamInfo<ProcessCase>& info) {
  return std::to_string(info.param.ranks) + "_ranks";
}

}  // namespace rotunda::testing
