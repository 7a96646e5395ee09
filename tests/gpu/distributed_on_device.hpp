// Runs a problem over ranks on CUDA devices, everything staying there.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "gpu/device_problem.hpp"
#include "rotunda/attention.hpp"
#include "rotunda/graph.hpp"

namespace rotunda::testing {

/// One rank's attention and tensors, ready to run again.
struct DeviceRank {
  DeviceRank(const Problem& problem, const PlanOptions& options, Transport& transport)
      : plan(agree_on_plan(problem, options, transport)),
        stream(plan->device),
        tensors(plan->problem, plan->shard.q.rows(plan->rank), plan->shard.k.rows(plan->rank), plan->device),
        attention(plan, transport) {}

  void take(const Tensors& whole) {
    const auto scatter = [&](const TokenMap& map, TensorView Tensors::*field) {
      scatter_on_device(map, plan->rank, whole.*field, tensors.views().*field, plan->device.index);
    };
    scatter(plan->shard.q, &Tensors::q);
    scatter(plan->shard.k, &Tensors::k);
    scatter(plan->shard.k, &Tensors::v);
    if (plan->problem.grad) scatter(plan->shard.q, &Tensors::dout);
    if (plan->problem.sink == Sink::learnable) {
      copy_bytes(tensors.views().sink.data, whole.sink.data, 4 * plan->problem.h_q, plan->device, {});
    }
    synchronize(plan->device, {});
  }

  void run(Stream on) {
    attention.forward(tensors.views(), on);
    if (plan->problem.grad) attention.backward(tensors.views(), on);
  }
  void run() {
    run(stream.get());
    synchronize(plan->device, stream.get());
  }

  void give(const Tensors& whole) const {
    const auto gather = [&](const TokenMap& map, TensorView Tensors::*field) {
      gather_on_device(map, plan->rank, tensors.views().*field, whole.*field, plan->device.index);
    };
    gather(plan->shard.q, &Tensors::out);
    gather(plan->shard.q, &Tensors::lse);
    if (plan->problem.grad) {
      gather(plan->shard.q, &Tensors::dq);
      gather(plan->shard.k, &Tensors::dk);
      gather(plan->shard.k, &Tensors::dv);
    }
    synchronize(plan->device, {});
  }

  std::shared_ptr<const Plan> plan;
  OwnedStream stream;
  DeviceTensors tensors;
  Attention attention;
};

/// A group of ranks that can run again and again.
class DeviceGroup {
 public:
  DeviceGroup(const Problem& problem, const PlanOptions& options, int ranks, const std::vector<int>& devices)
      : group_(make_local_group(ranks, {.timeout = std::chrono::seconds(60), .fault = {}, .devices = devices})),
        ranks_(static_cast<std::size_t>(ranks)) {
    each([&](Transport& transport, std::unique_ptr<DeviceRank>& rank) {
      rank = std::make_unique<DeviceRank>(problem, options, transport);
      rank->attention.set_poison(true);
    });
  }

  void take(const Tensors& whole) {
    for (const auto& rank : ranks_) rank->take(whole);
  }
  void run() {
    each([](Transport&, std::unique_ptr<DeviceRank>& rank) { rank->run(); });
  }
  /// On the devices' default streams.
  void run_on_default_streams() {
    each([](Transport&, std::unique_ptr<DeviceRank>& rank) {
      rank->run(Stream{});
      synchronize(rank->plan->device, {});
    });
  }
  void give(const Tensors& whole) const {
    for (const auto& rank : ranks_) rank->give(whole);
  }
  [[nodiscard]] GroupGraph capture() {
    return {group_, [&](Transport& transport, Stream stream) { ranks_[index(transport)]->run(stream); }};
  }
  [[nodiscard]] const DeviceRank& rank(int r) const { return *ranks_[static_cast<std::size_t>(r)]; }

 private:
  static std::size_t index(const Transport& transport) { return static_cast<std::size_t>(transport.rank()); }

  template <class Body>
  void each(Body&& body) {
    run_ranks(group_, [&](Transport& transport) { body(transport, ranks_[index(transport)]); });
  }

  std::vector<std::unique_ptr<Transport>> group_;
  std::vector<std::unique_ptr<DeviceRank>> ranks_;
};

/// Devices that the tests use: ROTUNDA_TEST_DEVICES, or the first.
[[nodiscard]] std::vector<int> test_devices();
/// Why no test can run here, or empty.
[[nodiscard]] std::string skip_reason();

}  // namespace rotunda::testing

#define ROTUNDA_NEEDS_DEVICE() \
  if (const std::string why = ::rotunda::testing::skip_reason(); !why.empty()) GTEST_SKIP() << why
