// A ring forward with a head-parallel backward on CUDA devices, with the kernel that auto takes.
#include <gtest/gtest.h>

#include <thread>

#include "gpu/distributed_on_device.hpp"
#include "support/results.hpp"

namespace rotunda::testing {
namespace {

constexpr TensorView Tensors::*kResults[] = {&Tensors::out, &Tensors::lse, &Tensors::dq, &Tensors::dk, &Tensors::dv};

struct Case {
  const char* name;
  const char* shape;
};

class Mixed : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override { ROTUNDA_NEEDS_DEVICE(); }

  [[nodiscard]] static PlanOptions options(ScheduleKind backward) {
    PlanOptions result;
    result.device = Device::Kind::cuda;
    result.schedule = ScheduleKind::p2p;
    result.backward_schedule = backward;
    return result;
  }
  [[nodiscard]] static Problem problem(const char* keys) {
    return parse_problem(fmt::format("{} mask=causal grad=1 {}", GetParam().shape, keys));
  }
};

std::int64_t differing(const Tensors& a, const Tensors& b, std::span<TensorView Tensors::*const> fields) {
  std::int64_t count = 0;
  for (const auto field : fields) count += differing_bits_on_device(a.*field, b.*field);
  return count;
}

/// Float64 answers and naive errors, worked out on the host.
class Oracle {
 public:
  Oracle(const Problem& problem, const Tensors& inputs) : problem_(problem) {
    Tensors tensors;
    for (const auto field : {&Tensors::q, &Tensors::k, &Tensors::v, &Tensors::dout}) fetch(inputs, tensors, field);
    want_ = oracle(problem, tensors, static_cast<int>(std::thread::hardware_concurrency()));
  }
  void expect_right(const Tensors& results, const std::string& what) {
    memory_.clear();
    Tensors tensors;
    for (const auto field : kResults) fetch(results, tensors, field);
    for (const Grade& g : grade(problem_, want_, tensors)) {
      EXPECT_TRUE(g.passed()) << what << " " << g.tensor << ": ratio " << g.ratio << ", misplaced " << g.misplaced;
    }
  }

 private:
  void fetch(const Tensors& from, Tensors& to, TensorView Tensors::*field) {
    memory_.push_back(download(from.*field, to.*field));
  }
  Problem problem_;
  OracleResult want_;
  std::vector<std::vector<std::byte>> memory_;
};

TEST_P(Mixed, ForwardHasTheRingsBitsAndGradientsAreRight) {
  for (const char* dtype : {"dtype=bf16", "dtype=fp16"}) {
    const Problem p = problem(dtype);
    DeviceTensors ring(p, p.s_q, p.s_k, cuda_device(0)), mixed(p, p.s_q, p.s_k, cuda_device(0));
    ring.fill_inputs(p, 3);
    mixed.fill_inputs(p, 3);
    Oracle exact(p, ring.views());
    for (const int ranks : {2, 3, 4, 8}) {
      const std::string what = fmt::format("{} on {} ranks", to_text(p), ranks);
      const auto run = [&](ScheduleKind backward, DeviceTensors& whole) {
        DeviceGroup group(p, options(backward), ranks, test_devices());
        whole.poison_outputs();
        group.take(whole.views());
        group.run();
        group.give(whole.views());
      };
      run(ScheduleKind::p2p, ring);
      for (const ScheduleKind backward : {ScheduleKind::a2a, ScheduleKind::all_gather}) {
        run(backward, mixed);
        EXPECT_EQ(differing(ring.views(), mixed.views(), std::span(kResults).first(2)), 0) << what;
        exact.expect_right(mixed.views(), what);
      }
    }
  }
}

TEST_P(Mixed, ReplaysAndRepeatsHaveTheSameBits) {
  const Problem p = problem("deterministic=1");
  DeviceTensors eager(p, p.s_q, p.s_k, cuda_device(0)), again(p, p.s_q, p.s_k, cuda_device(0));
  DeviceGroup group(p, options(ScheduleKind::a2a), 4, test_devices());
  const auto run = [&](DeviceTensors& whole, std::uint64_t seed) {
    whole.fill_inputs(p, seed);
    whole.poison_outputs();
    group.take(whole.views());
    group.run();
    group.give(whole.views());
  };
  run(eager, 1);
  for (int repeat = 0; repeat < 10; ++repeat) {
    run(again, 1);
    ASSERT_EQ(differing(eager.views(), again.views(), kResults), 0) << "run " << repeat;
  }
  GroupGraph graph = group.capture();
  const OwnedStream stream(group.rank(0).plan->device);
  for (std::uint64_t replay = 0; replay < 50; ++replay) {
    run(eager, 100 + replay);
    again.poison_outputs();
    graph.replay(stream.get());
    synchronize(group.rank(0).plan->device, stream.get());
    group.give(again.views());
    ASSERT_EQ(differing(eager.views(), again.views(), kResults), 0) << "replay " << replay;
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, Mixed,
                         ::testing::Values(Case{"d128", "s_q=515 h_q=8 d=128"}, Case{"b2", "b=2 s_q=300 h_q=8 d=128"},
                                           Case{"gqa", "b=2 s_q=259 h_q=8 h_kv=2 d=128"},
                                           Case{"mla", "s_q=515 h_q=8 d=192 d_v=128"},
                                           Case{"d512", "s_q=387 h_q=8 h_kv=4 d=512"}),
                         [](const auto& param_info) { return param_info.param.name; });

}  // namespace
}  // namespace rotunda::testing
