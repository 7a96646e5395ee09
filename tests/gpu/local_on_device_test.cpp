// Ranks as threads that share CUDA devices: streams, graphs, determinism, failures.
#include <gtest/gtest.h>

#include "gpu/distributed_on_device.hpp"
#include "support/error_test.hpp"

namespace rotunda::testing {
namespace {

Problem small_problem() {
  return parse_problem("dtype=bf16 b=2 s_q=515 h_q=8 h_kv=4 d=64 mask=causal deterministic=1 grad=1");
}

/// The kernels that serve a problem on the device: the reference, and what auto may take.
std::vector<std::string> kernels_for(const Problem& problem) {
  std::vector<std::string> names{"reference"};
  try {
    PlanOptions options;
    options.device = Device::Kind::cuda;
    names.push_back(make_plan(problem, options, 0, 1)->kernel);
  } catch (const Error&) {  // none but the reference
  }
  return names;
}

class OnDevice : public ::testing::TestWithParam<ScheduleKind> {
 protected:
  [[nodiscard]] static PlanOptions options(const std::string& kernel) {
    PlanOptions result;
    result.schedule = GetParam();
    result.kernel = kernel;
    return result;
  }
};

std::int64_t differing(const Tensors& a, const Tensors& b) {
  std::int64_t count = 0;
  for (TensorView Tensors::*field : {&Tensors::out, &Tensors::lse, &Tensors::dq, &Tensors::dk, &Tensors::dv}) {
    count += differing_bits_on_device(a.*field, b.*field);
  }
  return count;
}

TEST_P(OnDevice, AnyStreamGivesTheSameBits) {
  ROTUNDA_NEEDS_DEVICE();
  const Problem problem = small_problem();
  DeviceTensors first(problem, problem.s_q, problem.s_k, cuda_device(0));
  DeviceTensors again(problem, problem.s_q, problem.s_k, cuda_device(0));
  first.fill_inputs(problem, 1);
  for (const std::string& kernel : kernels_for(problem)) {
    DeviceGroup group(problem, options(kernel), 4, test_devices());
    group.take(first.views());
    group.run_on_default_streams();
    group.give(first.views());
    for (int repeat = 0; repeat < 50; ++repeat) {
      again.poison_outputs();
      group.run();
      group.give(again.views());
      ASSERT_EQ(differing(first.views(), again.views()), 0) << kernel << " run " << repeat;
    }
  }
}

TEST_P(OnDevice, GraphReplaysOnNewInputsGiveTheBitsOfEagerRuns) {
  ROTUNDA_NEEDS_DEVICE();
  const Problem problem = small_problem();
  DeviceTensors eager(problem, problem.s_q, problem.s_k, cuda_device(0));
  DeviceTensors replayed(problem, problem.s_q, problem.s_k, cuda_device(0));
  for (const std::string& kernel : kernels_for(problem)) {
    DeviceGroup group(problem, options(kernel), 4, test_devices());
    eager.fill_inputs(problem, 100);
    group.take(eager.views());
    group.run();
    GroupGraph graph = group.capture();
    const OwnedStream stream(group.rank(0).plan->device);
    for (int replay = 0; replay < 50; ++replay) {
      eager.fill_inputs(problem, static_cast<std::uint64_t>(replay));
      group.take(eager.views());
      group.run();
      group.give(eager.views());
      replayed.poison_outputs();
      graph.replay(stream.get());
      synchronize(group.rank(0).plan->device, stream.get());
      group.give(replayed.views());
      ASSERT_EQ(differing(eager.views(), replayed.views()), 0) << kernel << " replay " << replay;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Schedules, OnDevice, ::testing::ValuesIn(kScheduleKinds),
                         [](const auto& param_info) { return to_string(param_info.param); });

TEST(OnDeviceMemory, RingHoldsNoMoreWithMoreRanks) {
  ROTUNDA_NEEDS_DEVICE();
  const Problem problem = parse_problem("s_q=16384 h_q=8 d=128 mask=causal grad=1");
  PlanOptions options;
  options.device = Device::Kind::cuda;
  options.schedule = ScheduleKind::p2p;
  options.kernel = "reference";
  std::int64_t of_two = 0;
  for (const int ranks : {2, 4, 8}) {
    // A rank's share shrinks with the ranks: what it holds must shrink alike.
    const std::int64_t bytes = make_plan(problem, options, 0, ranks)->peak_bytes() * ranks;
    if (ranks == 2) of_two = bytes;
    EXPECT_LE(bytes, of_two * 21 / 20) << ranks;
  }
}

TEST(OnDeviceFailures, ARankThatThrowsOrStallsEndsTheOthers) {
  ROTUNDA_NEEDS_DEVICE();
  const Problem problem = small_problem();
  for (const Fault::Kind kind : {Fault::Kind::throws, Fault::Kind::stalls, Fault::Kind::dies}) {
    auto group = make_local_group(
        3, {.timeout = std::chrono::milliseconds(2000), .fault = {kind, 1, 2}, .devices = test_devices()});
    PlanOptions options;
    options.schedule = ScheduleKind::p2p;
    options.kernel = "reference";
    const auto run = [&] {
      run_ranks(group, [&](Transport& transport) {
        DeviceRank rank(problem, options, transport);
        rank.tensors.fill_inputs(problem, 1);
        rank.run();
      });
    };
    EXPECT_ERROR(run(), ErrorKind::transport, "rank 1");
  }
}

TEST(OnDeviceFailures, HostTensorsAndMissingDevicesAreNamed) {
  ROTUNDA_NEEDS_DEVICE();
  PlanOptions options;
  options.device = Device::Kind::cuda;
  options.devices = {99};
  EXPECT_ERROR((void)make_plan(small_problem(), options, 0, 1), ErrorKind::unsupported, "cuda:99");
  EXPECT_ERROR(DeviceMemory(cuda_device(0), std::int64_t{1} << 50), ErrorKind::device, "GiB");

  auto group = make_local_group(1, {.timeout = std::chrono::seconds(5), .fault = {}, .devices = {0}});
  const auto run = [&] {
    run_ranks(group, [&](Transport& transport) {
      PlanOptions reference;
      reference.kernel = "reference";
      DeviceRank rank(small_problem(), reference, transport);
      std::vector<std::byte> host(static_cast<std::size_t>(rank.tensors.views().q.elements() * 2));
      rank.tensors.views().q.data = host.data();
      rank.run();
    });
  };
  EXPECT_ERROR(run(), ErrorKind::bad_input, "host memory");
}

}  // namespace
}  // namespace rotunda::testing
