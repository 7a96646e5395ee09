// P13: ranks that disagree. Every rank gets an error that names a differing rank, the field and both values, before any
// data moves, and the group stays usable.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <mutex>
#include <nlohmann/json.hpp>

#include "rotunda/plan.hpp"

namespace rotunda {
namespace {

const char* const kSmallText = "dtype=fp32 layout=bshd b=1 s_q=10 h_q=4 d=16 mask=none grad=1";

struct Disagreement {
  const char* name;
  std::function<void(Problem&, PlanOptions&)> change;  ///< what rank 1 has otherwise
  const char* said;                                    ///< in every rank's message
};

const Disagreement kDisagreements[] = {
    {"length", [](Problem& p, PlanOptions&) { p = parse_problem("dtype=fp32 s_q=12 h_q=4 d=16 mask=none grad=1"); },
     "rank 1 has s_q=12 where rank 0 has s_q=10"},
    {"heads", [](Problem& p, PlanOptions&) { p.h_q = p.h_kv = 8; }, "rank 1 has h_q=8 where rank 0 has h_q=4"},
    {"dtype", [](Problem& p, PlanOptions&) { p.dtype = DType::bf16; },
     "rank 1 has dtype=bf16 where rank 0 has dtype=fp32"},
    {"mask", [](Problem& p, PlanOptions&) { p.mask = Mask::causal; },
     "rank 1 has mask=causal where rank 0 has mask=none"},
    {"schedule", [](Problem&, PlanOptions& o) { o.schedule = ScheduleKind::a2a; },
     "rank 1 has schedule=a2a where rank 0 has schedule=p2p"},
    {"backward_schedule", [](Problem&, PlanOptions& o) { o.mixes = true; },
     "rank 1 has backward_schedule=auto where rank 0 has backward_schedule=schedule"},
    {"shard", [](Problem&, PlanOptions& o) { o.shard = ShardKind::striped; },
     "rank 1 has shard=striped where rank 0 has shard=contiguous"},
    {"kernel", [](Problem&, PlanOptions& o) { o.kernel = "reference"; },
     "rank 1 has kernel=reference where rank 0 has kernel=auto"},
    {"scratch", [](Problem&, PlanOptions& o) { o.kernel_scratch = 1; },
     "rank 1 has kernel_scratch=1 where rank 0 has kernel_scratch=0"},
    {"groups", [](Problem&, PlanOptions& o) { o.head_groups = 2; },
     "rank 1 has head_groups=2 where rank 0 has head_groups=0"},
    {"scale", [](Problem& p, PlanOptions&) { p.scale = 0.5; }, "rank 1 has scale=0.5 where rank 0 has scale=0.25"},
};

class Agreement : public ::testing::TestWithParam<Disagreement> {};

TEST_P(Agreement, NamesRankFieldAndBothValuesOnEveryRank) {
  auto group = make_local_group(4);
  std::mutex mutex;
  int failed = 0;
  run_ranks(group, [&](Transport& transport) {
    Problem problem = parse_problem(kSmallText);
    PlanOptions options;
    options.schedule = ScheduleKind::p2p;
    options.shard = ShardKind::contiguous;
    const Problem right = problem;
    const PlanOptions right_options = options;
    if (transport.rank() == 1) GetParam().change(problem, options);
    try {
      (void)agree_on_plan(problem, options, transport);
    } catch (const Error& error) {
      const std::scoped_lock lock(mutex);
      ++failed;
      EXPECT_EQ(error.kind(), ErrorKind::bad_input);
      EXPECT_NE(std::string(error.what()).find(GetParam().said), std::string::npos) << error.what();
    }
    // The group is still of use.
    EXPECT_NE(agree_on_plan(right, right_options, transport), nullptr);
    EXPECT_EQ(transport.counters().bytes_received, 0);
  });
  EXPECT_EQ(failed, 4);
}

INSTANTIATE_TEST_SUITE_P(Fields, Agreement, ::testing::ValuesIn(kDisagreements),
                         [](const auto& param_info) { return param_info.param.name; });

TEST(Agreement, ARankThatCannotPlanTellsTheOthers) {
  auto group = make_local_group(3);
  std::mutex mutex;
  int failed = 0;
  run_ranks(group, [&](Transport& transport) {
    PlanOptions options;
    options.kernel = "cudnn";
    try {
      (void)agree_on_plan(parse_problem(kSmallText), options, transport);
    } catch (const Error& error) {
      const std::scoped_lock lock(mutex);
      ++failed;
      EXPECT_EQ(error.kind(), ErrorKind::unsupported);
      EXPECT_NE(std::string(error.what()).find("cudnn"), std::string::npos) << error.what();
    }
  });
  EXPECT_EQ(failed, 3);
}

TEST(Agreement, UnlikeMachinesPlanForThatOfRank0) {
  const std::string folder = testing::TempDir() + "rotunda_agreement";
  std::filesystem::create_directories(folder);
  ASSERT_EQ(setenv("ROTUNDA_CACHE", folder.c_str(), 1), 0);
  std::ofstream(calibration_file()) << with_calibration("", Device{}, {{{"cpu", 32, 64, 1e10}}});
  auto group = make_local_group(3);
  run_ranks(group, [&](Transport& transport) {
    PlanOptions options;
    options.threads = 2 + transport.rank();  // a rank's rate is that of its threads
    EXPECT_EQ(agree_on_plan(parse_problem(kSmallText), options, transport)->machine.flops_per_second, 2e10);
  });
  unsetenv("ROTUNDA_CACHE");
  std::filesystem::remove_all(folder);
}

void change(std::string& field) {
  field += ", another";
}
void change(bool& field) {
  field = !field;
}
void change(double& field) {
  field = 3 * field + 0.1;
}

/// A rank's end of a group, whose rank says that it has planned for another machine.
class OnMachine final : public Transport {
 public:
  OnMachine(Transport& end, Machine machine) : end_(end), machine_(std::move(machine)) {}

  [[nodiscard]] std::vector<std::string> all_gather_text(const std::string& text) override {
    nlohmann::json said = nlohmann::json::parse(text);
    for_fields(machine_, [&](const char* name, const auto& field) { said.at("machine").at(name) = field; });
    return end_.all_gather_text(said.dump());
  }
  [[nodiscard]] std::string name() const override { return end_.name(); }
  [[nodiscard]] int rank() const override { return end_.rank(); }
  [[nodiscard]] int size() const override { return end_.size(); }
  void post(int id, std::span<const Message> sends, std::span<const Message> receives) override {
    end_.post(id, sends, receives);
  }
  void await(int id) override { end_.await(id); }
  void await_sent(int id) override { end_.await_sent(id); }
  void abort(const std::string& reason) noexcept override { end_.abort(reason); }
  [[nodiscard]] TransportCounters counters() const override { return end_.counters(); }

 private:
  Transport& end_;
  Machine machine_;
};

TEST(Agreement, EveryFieldOfTheMachineReachesEveryRank) {
  Machine first;
  for_fields(first, [](const char*, auto& field) { change(field); });
  EXPECT_GT(first.seconds_per_call, 0);
  auto group = make_local_group(3);
  run_ranks(group, [&](Transport& transport) {
    OnMachine there(transport, first);
    Transport& end = transport.rank() == 0 ? there : transport;
    EXPECT_EQ(agree_on_plan(parse_problem(kSmallText), {}, end)->machine, first) << "rank " << transport.rank();
  });
}

TEST(Agreement, PlansOfAllRanksHaveOneHash) {
  const Problem problem = parse_problem("layout=thd cu_q=0,7,40,41,90 h_q=4 h_kv=2 d=16 mask=causal grad=1");
  std::uint64_t hash = 0;
  for (int rank = 0; rank < 4; ++rank) {
    const auto plan = make_plan(problem, {}, rank, 4);
    if (rank == 0) hash = plan->hash;
    EXPECT_EQ(plan->hash, hash);
  }
}

}  // namespace
}  // namespace rotunda
