// What the host spends on a call with a cached plan, on CUDA devices: `host_time [ranks] [kernel] [problem…]`. Ranks
// are threads that share the devices. The device has long finished what a call enqueues when the next one is timed.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <string>
#include <vector>

#include "program.hpp"
#include "rotunda/attention.hpp"

namespace rotunda {
namespace {

using Clock = std::chrono::steady_clock;

/// Tensors of one rank; what they hold does not matter here.
class RankTensors {
 public:
  RankTensors(const Plan& plan, int rank) : device_(plan.device) {
    const Problem& p = plan.problem;
    const std::int64_t rows_q = plan.shard.q.rows(rank), rows_k = plan.shard.k.rows(rank);
    tensors.q = make(p, p.dtype, rows_q, p.h_q, p.d);
    tensors.k = make(p, p.dtype, rows_k, p.h_kv, p.d);
    tensors.v = make(p, p.dtype, rows_k, p.h_kv, p.d_v);
    tensors.out = make(p, p.dtype, rows_q, p.h_q, p.d_v);
    tensors.dout = make(p, p.dtype, rows_q, p.h_q, p.d_v);
    tensors.lse = make(p, DType::fp32, rows_q, p.h_q, 1);
    tensors.dq = make(p, p.dtype, rows_q, p.h_q, p.d);
    tensors.dk = make(p, p.dtype, rows_k, p.h_kv, p.d);
    tensors.dv = make(p, p.dtype, rows_k, p.h_kv, p.d_v);
    synchronize(device_, {});
  }
  Tensors tensors;

 private:
  TensorView make(const Problem& p, DType dtype, std::int64_t rows, std::int64_t heads, std::int64_t dim) {
    const std::int64_t elements = p.batches() * rows * heads * dim;
    memory_.emplace_back(device_, elements * static_cast<std::int64_t>(size_of(dtype)));
    set_bytes(memory_.back().data(), 0x3c, memory_.back().bytes(), device_, {});
    return make_view(memory_.back().data(), dtype, p.layout, p.batches(), rows, heads, dim);
  }
  Device device_;
  std::vector<DeviceMemory> memory_;
};

/// Median microseconds of a call, the device idle before each.
template <class Call>
double host_microseconds(const Device& device, Stream stream, Transport& transport, Call&& call) {
  constexpr int kCalls = 60, kWarm = 10;
  std::vector<double> times;
  for (int i = 0; i < kCalls; ++i) {
    synchronize(device, stream);
    (void)transport.all_gather_text("");
    const auto begin = Clock::now();
    call();
    if (i >= kWarm) times.push_back(std::chrono::duration<double, std::micro>(Clock::now() - begin).count());
  }
  std::nth_element(times.begin(), times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2), times.end());
  return times[times.size() / 2];
}

void time_schedule(const Problem& problem, ScheduleKind schedule, const std::string& kernel, Transport& transport) {
  PlanOptions options;
  options.schedule = schedule;
  options.device = Device::Kind::cuda;
  options.kernel = kernel;
  const auto agree = [&] { return agree_on_plan(problem, options, transport); };
  const auto plan = agree();
  RankTensors rank(*plan, transport.rank());
  const OwnedStream stream(plan->device);
  Attention attention(plan, transport);
  const auto time = [&](auto&& call) { return host_microseconds(plan->device, stream.get(), transport, call); };
  const double forward = time([&] { attention.forward(rank.tensors, stream.get()); });
  const double backward = problem.grad ? time([&] { attention.backward(rank.tensors, stream.get()); }) : 0;
  const double planning = time([&] { (void)agree(); });
  if (transport.rank() != 0) return;
  fmt::print("{:<12} {:<10} {:>9.0f} {:>9.0f} {:>9.0f}\n", to_string(schedule), plan->kernel, forward, backward,
             planning);
}

int run(int argc, char** argv) {
  const int ranks = argc > 1 ? std::max(1, std::atoi(argv[1])) : 1;
  const std::string kernel = argc > 2 ? argv[2] : "";
  const Problem problem = parse_problem(argc > 3 ? argv[3] : "s_q=2048 h_q=16 d=128 mask=causal grad=1");
  LocalOptions options;
  for (int i = 0; i < cuda_device_count(); ++i) options.devices.push_back(i);
  fmt::print("{} ranks, {}\nmicroseconds a call   forward  backward  agreement on a cached plan\n", ranks,
             to_text(problem));
  for (const ScheduleKind schedule : {ScheduleKind::p2p, ScheduleKind::all_gather, ScheduleKind::a2a}) {
    auto group = make_local_group(ranks, options);
    run_ranks(group, [&](Transport& transport) { time_schedule(problem, schedule, kernel, transport); });
  }
  return 0;
}

}  // namespace
}  // namespace rotunda

int main(int argc, char** argv) {
  return rotunda::run_program("host_time", argc, argv, rotunda::run);
}
