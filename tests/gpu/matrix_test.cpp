// TransformerEngine's matrix at full size on CUDA devices: every schedule with the kernel that auto takes, against
// float64. What a kernel declines is declined before any work, on every rank alike, and listed at the end.
//
// Exact answers of all heads come from the reference kernel on the device, on an fp32 copy of the inputs. The naive
// algorithm's error, which the bar is made of, is measured on the host for the first KV head and its query heads in one
// batch entry (thd: in the shortest sequence), and so is the exact answer of these.
#include <gtest/gtest.h>

#include <map>
#include <thread>

#include "base/environment.hpp"
#include "gpu/distributed_on_device.hpp"
#include "kernel/elementwise/elementwise.hpp"
#include "support/random_problem.hpp"
#include "support/results.hpp"
#include "support/transformer_engine_matrix.hpp"

namespace rotunda::testing {
namespace {

constexpr TensorView Tensors::*kCompared[] = {&Tensors::out, &Tensors::lse, &Tensors::dq, &Tensors::dk, &Tensors::dv};
constexpr const char* kNames[] = {"out", "lse", "dq", "dk", "dv"};
// The largest error over all heads and sequences may exceed that over the few that naive was run on.
constexpr double kWholeToSample = 1.5;

int length_of(const MatrixRow& row) {
  return row.d == 256 ? 1024 : 4096;
}

std::string packed_layout(int length, std::uint64_t seed, bool padded) {
  Random random(seed);
  std::vector<std::int64_t> cu{0}, used;
  while (cu.back() < length) {
    const std::int64_t space = std::min<std::int64_t>(length - cu.back(), random.between(length / 8, length / 3));
    used.push_back(padded ? random.between(space / 2, space) : space);
    cu.push_back(cu.back() + space);
  }
  return fmt::format("layout=thd cu_q={} used_q={}", fmt::join(cu, ","), fmt::join(used, ","));
}

struct Case {
  MatrixRow row;
  DType dtype;
  std::string layout;
};

Problem problem_of(const Case& c) {
  const int length = length_of(c.row);
  std::string shape = fmt::format("layout={} b=2 s_q={}", c.layout, length);
  const auto seed = static_cast<std::uint64_t>(c.row.d + c.row.full_h_q);
  if (c.layout.starts_with("thd")) shape = packed_layout(2 * length, seed, c.layout == "thd_padded");
  return parse_problem(fmt::format("dtype={} {} h_q={} h_kv={} d={} d_v={} {} grad=1", to_string(c.dtype), shape,
                                   c.row.full_h_q, c.row.full_h_kv, c.row.d, c.row.d_v, mask_keys(c.row, 1)));
}

/// One sequence's first KV head and its query heads, on the host: the oracle's exact and naive answers.
class Sample {
 public:
  Sample(const Problem& whole, const Tensors& inputs) : problem_(whole), group_(whole.h_q / whole.h_kv) {
    problem_.h_q = group_;
    problem_.h_kv = 1;
    problem_.b = 1;
    if (whole.layout == Layout::thd) take_shortest(whole);
    Tensors tensors;
    fetch(inputs, tensors, {&Tensors::q, &Tensors::k, &Tensors::v, &Tensors::dout});
    if (problem_.sink == Sink::learnable) {
      memory_.push_back(download(inputs.sink.narrow_heads(0, group_), tensors.sink));
    }
    want_ = oracle(problem_, tensors, static_cast<int>(std::thread::hardware_concurrency()));
  }

  [[nodiscard]] std::vector<Grade> grades(const Tensors& results) {
    memory_.clear();
    Tensors tensors;
    fetch(results, tensors, {&Tensors::out, &Tensors::lse, &Tensors::dq, &Tensors::dk, &Tensors::dv});
    return grade(problem_, want_, tensors);
  }

 private:
  /// The sequence with the fewest visible rows: means over few keys have the largest values, and errors.
  /// Queries and keys have the same offsets in these problems.
  void take_shortest(const Problem& whole) {
    const auto length = [&](std::size_t i) { return whole.cu_q[i + 1] - whole.cu_q[i]; };
    const auto visible = [&](std::size_t i) { return whole.used_q.empty() ? length(i) : whole.used_q[i]; };
    std::size_t shortest = 0;
    for (std::size_t i = 1; i + 1 < whole.cu_q.size(); ++i) {
      if (visible(i) > 0 && visible(i) < visible(shortest)) shortest = i;
    }
    begin_ = whole.cu_q[shortest];
    problem_.cu_q = problem_.cu_k = {0, length(shortest)};
    problem_.used_q = problem_.used_k = {visible(shortest)};
    problem_.s_q = problem_.s_k = length(shortest);
  }

  void fetch(const Tensors& from, Tensors& to, const std::vector<TensorView Tensors::*>& fields) {
    for (const auto field : fields) {
      const bool kv = field == &Tensors::k || field == &Tensors::v || field == &Tensors::dk || field == &Tensors::dv;
      TensorView view = (from.*field).narrow_heads(0, kv ? 1 : group_).narrow_rows(begin_, problem_.s_q);
      view.shape[0] = 1;
      memory_.push_back(download(view, to.*field));
    }
  }

  Problem problem_;
  int group_;
  std::int64_t begin_ = 0;  ///< first row
  OracleResult want_;
  std::vector<std::vector<std::byte>> memory_;
};

/// Float64 answers of all heads, in fp32 memory.
std::unique_ptr<DeviceTensors> exact_answers(const Problem& problem, const Tensors& inputs) {
  Problem wide = problem;
  wide.dtype = DType::fp32;
  auto group = make_local_group(1, {.timeout = std::chrono::seconds(60), .fault = {}, .devices = {0}});
  std::unique_ptr<DeviceTensors> result;
  run_ranks(group, [&](Transport& transport) {
    PlanOptions options;
    options.kernel = "reference";
    const auto plan = agree_on_plan(wide, options, transport);
    result = std::make_unique<DeviceTensors>(wide, wide.s_q, wide.s_k, plan->device);
    const auto elementwise = cuda_elementwise(plan->device, {});
    for (TensorView Tensors::*field : {&Tensors::q, &Tensors::k, &Tensors::v, &Tensors::dout, &Tensors::sink}) {
      const TensorView& from = inputs.*field;
      if (from.data != nullptr) elementwise->convert(from, result->views().*field);
    }
    Attention attention(plan, transport);
    attention.forward(result->views());
    attention.backward(result->views());
    synchronize(plan->device, {});
  });
  return result;
}

std::map<std::string, std::map<std::string, int>> declined;  // reason, then what

class Matrix : public ::testing::TestWithParam<Case> {};

void check(const DeviceTensors& whole, const DeviceTensors& exact, Sample& sample, const std::string& what) {
  std::map<std::string, double> naive;
  for (const Grade& g : sample.grades(whole.views())) {
    EXPECT_TRUE(g.passed()) << what << " " << g.tensor << ": ratio " << g.ratio << " error " << g.error << " naive "
                            << g.naive_error << " misplaced " << g.misplaced;
    naive[g.tensor] = g.ratio > 0 ? g.error / g.ratio : g.naive_error;  // or its floor
  }
  for (std::size_t i = 0; i < std::size(kCompared); ++i) {
    const Difference d = difference(whole.views().*kCompared[i], exact.views().*kCompared[i]);
    const bool lse = kCompared[i] == &Tensors::lse;
    EXPECT_EQ(d.misplaced, 0) << what << " " << kNames[i];
    EXPECT_LE(d.most, lse ? 2e-4 : 2 * kWholeToSample * naive[kNames[i]])
        << what << " " << kNames[i] << " of all heads";
  }
}

TEST_P(Matrix, MatchesTheOracleOrIsDeclined) {
  ROTUNDA_NEEDS_DEVICE();
  const Problem problem = problem_of(GetParam());
  DeviceTensors whole(problem, problem.s_q, problem.s_k, cuda_device(0));
  whole.fill_inputs(problem, 5);
  Sample sample(problem, whole.views());
  const auto exact = exact_answers(problem, whole.views());
  for (const int ranks : {2, 3, 4, 8}) {
    for (const ScheduleKind schedule : kScheduleKinds) {
      PlanOptions options;
      options.device = Device::Kind::cuda;
      options.schedule = schedule;
      options.shard = ShardKind::dual_chunk;
      if (const auto kernel = environment("ROTUNDA_TEST_KERNEL")) options.kernel = *kernel;
      const std::string what = fmt::format("{} ranks {}", to_string(schedule), ranks);
      try {
        DeviceGroup group(problem, options, ranks, test_devices());
        whole.poison_outputs();
        group.take(whole.views());
        group.run();
        group.give(whole.views());
      } catch (const Error& error) {
        ASSERT_EQ(error.kind(), ErrorKind::unsupported) << what << ": " << error.what();
        ++declined[error.what()][fmt::format("{} {} {}", GetParam().row.name, GetParam().layout, what)];
        continue;
      }
      check(whole, *exact, sample, what);
      if (HasFailure()) return;
    }
  }
}

/// Says what was declined, and why.
class DeclinedTable : public ::testing::Environment {
 public:
  void TearDown() override {
    for (const auto& [reason, cases] : declined) {
      fmt::print("declined ({} cases, such as {}): {}\n", cases.size(), cases.begin()->first, reason);
    }
  }
};
[[maybe_unused]] const auto* const kTable = ::testing::AddGlobalTestEnvironment(new DeclinedTable);

std::vector<Case> cases() {
  std::vector<Case> result;
  for (const MatrixRow& row : kMatrixRows) {
    for (const char* layout : {"bshd", "sbhd", "thd", "thd_padded"}) result.push_back({row, DType::bf16, layout});
    for (const char* layout : {"bshd", "thd_padded"}) result.push_back({row, DType::fp16, layout});
  }
  return result;
}

INSTANTIATE_TEST_SUITE_P(TransformerEngine, Matrix, ::testing::ValuesIn(cases()), [](const auto& param_info) {
  const Case& c = param_info.param;
  return fmt::format("{}_{}_{}", c.row.name, c.layout, to_string(c.dtype));
});

}  // namespace
}  // namespace rotunda::testing
