// What the ranks of process_suite.cpp do.
#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <csignal>
#include <cstring>

#include "base/copy.hpp"
#include "base/cuda/check.hpp"
#include "gpu/distributed_on_device.hpp"
#include "gpu/spawned_ranks.hpp"

namespace rotunda::testing {
namespace {

/// The tests' kernels run on device 0 whatever device the tensors lie on.
void reach(const Device& device) {
  if (device.index != 0) {
    const cuda::CurrentDevice zero(0);
    ROTUNDA_CUDA(cudaDeviceEnablePeerAccess(device.index, 0));
  }
}

void settle(const Device& device) {
  for (const int index : {0, device.index}) {
    const cuda::CurrentDevice current(index);
    ROTUNDA_CUDA(cudaDeviceSynchronize());
  }
}

/// A dense tensor on the device whose bytes follow from a seed, and the same on the host.
struct Pattern {
  Pattern(const Device& device, DType dtype, Layout layout, std::int64_t rows, std::int64_t heads, unsigned seed)
      : on_host(make_view(nullptr, dtype, layout, 2, rows, heads, 40)),
        bytes(static_cast<std::size_t>(on_host.elements()) * size_of(dtype)),
        memory(device, static_cast<std::int64_t>(bytes.size())) {
    for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>((i * 2654435761U + seed) >> 13);
    on_host.data = bytes.data();
    on_device = on_host;
    on_device.data = memory.data();
    copy_bytes(memory.data(), bytes.data(), memory.bytes(), device, {});
    synchronize(device, {});
  }
  [[nodiscard]] bool device_equals(const std::vector<std::byte>& wanted) const {
    std::vector<std::byte> got(bytes.size());
    copy_bytes(got.data(), memory.data(), memory.bytes(), memory.device(), {});
    synchronize(memory.device(), {});
    return got == wanted;
  }

  TensorView on_host, on_device;
  std::vector<std::byte> bytes;
  DeviceMemory memory;
};

unsigned seed_of(int from, int to) {
  return static_cast<unsigned>(1000 * from + to);
}

/// Every rank sends parts of tensors to every rank, itself too, from and to every layout.
std::string strided(const ProcessOptions& options, const std::string& name) {
  const auto transport = make_process_transport(name, options);
  Transport& t = *transport;
  const OwnedStream stream(options.device);
  t.use_stream(stream.get());
  int id = 0, wrong = 0;
  for (const DType dtype : {DType::fp32, DType::bf16}) {
    for (const Layout from : {Layout::bshd, Layout::sbhd, Layout::bhsd}) {
      for (const Layout to : {Layout::bshd, Layout::sbhd, Layout::bhsd}) {
        const auto part = [](const TensorView& view) { return view.narrow_heads(1, 3).narrow_rows(2, 9); };
        std::vector<Pattern> out, in;
        std::vector<std::vector<std::byte>> wanted;
        std::vector<Message> sends, receives;
        for (int peer = 0; peer < t.size(); ++peer) {
          out.emplace_back(options.device, dtype, from, 13, 5, seed_of(t.rank(), peer));
          in.emplace_back(options.device, dtype, to, 12, 4, 7U);
          sends.push_back({peer, part(out.back().on_device)});
          receives.push_back({peer, part(in.back().on_device)});
          const Pattern theirs(options.device, dtype, from, 13, 5, seed_of(peer, t.rank()));
          copy(part(theirs.on_host), part(in.back().on_host));  // what is to arrive, around it what was there
          wanted.push_back(in.back().bytes);
        }
        t.post(id, sends, receives);
        t.await(id);
        t.await_sent(id++);
        synchronize(options.device, stream.get());
        for (int peer = 0; peer < t.size(); ++peer) {
          const auto at = static_cast<std::size_t>(peer);
          wrong += in[at].device_equals(wanted[at]) ? 0 : 1;
        }
        (void)t.all_gather_text("");  // nobody frees what others may still read
      }
    }
  }
  return wrong == 0 ? "ok" : fmt::format("{} messages are wrong", wrong);
}

const Problem& problem() {
  static const Problem once =
      parse_problem("dtype=bf16 b=2 s_q=259 h_q=8 h_kv=4 d=64 mask=causal deterministic=1 grad=1");
  return once;
}

PlanOptions options_of(ScheduleKind kind) {
  PlanOptions options;
  options.schedule = kind;
  options.kernel = "reference";
  return options;
}

std::int64_t differing(const Tensors& a, const Tensors& b) {
  std::int64_t count = 0;
  for (TensorView Tensors::*field : {&Tensors::out, &Tensors::lse, &Tensors::dq, &Tensors::dk, &Tensors::dv}) {
    count += differing_bits_on_device(a.*field, b.*field);
  }
  return count;
}

/// A rank's forward and backward as a graph of this process.
class RankGraph {
 public:
  explicit RankGraph(DeviceRank& rank) : stream_(rank.stream.get()) {
    ROTUNDA_CUDA(cudaStreamBeginCapture(cuda::native(stream_), cudaStreamCaptureModeThreadLocal));
    rank.run(stream_);
    ROTUNDA_CUDA(cudaStreamEndCapture(cuda::native(stream_), &graph_));
    ROTUNDA_CUDA(cudaGraphInstantiate(&executable_, graph_, 0));
  }
  ~RankGraph() {
    (void)cudaGraphExecDestroy(executable_);
    (void)cudaGraphDestroy(graph_);
  }
  RankGraph(const RankGraph&) = delete;
  RankGraph& operator=(const RankGraph&) = delete;

  void replay() { ROTUNDA_CUDA(cudaGraphLaunch(executable_, cuda::native(stream_))); }

 private:
  Stream stream_;
  cudaGraph_t graph_ = nullptr;
  cudaGraphExec_t executable_ = nullptr;
};

/// Forward and backward, eager and replayed, against the local transport's bits on the same inputs.
std::string attention(const ProcessOptions& options, const std::string& name) {
  const cuda::CurrentDevice current(0);
  reach(options.device);
  const auto transport = make_process_transport(name, options);
  DeviceTensors whole(problem(), problem().s_q, problem().s_k, options.device);
  // Processes that share a device take turns on it: what waits for two others waits for slices of milliseconds.
  const int replays = 20 / (options.group.size - 1);
  for (const ScheduleKind kind : kScheduleKinds) {
    DeviceGroup local(problem(), options_of(kind), options.group.size, {options.device.index});
    DeviceRank rank(problem(), options_of(kind), *transport);
    const auto check = [&](const char* what, int round, auto&& run) {
      whole.fill_inputs(problem(), static_cast<std::uint64_t>(round));
      settle(options.device);
      local.take(whole.views());
      local.run();
      rank.take(whole.views());
      rank.tensors.poison_outputs();
      settle(options.device);
      run();
      (void)transport->all_gather_text("");
      const std::int64_t wrong = differing(rank.tensors.views(), local.rank(options.group.rank).tensors.views());
      settle(options.device);
      return wrong == 0 ? "" : fmt::format("{} {} {}: {} elements differ. ", to_string(kind), what, round, wrong);
    };
    std::string faults;
    for (int round = 0; round < 3; ++round) faults += check("run", round, [&] { rank.run(); });
    RankGraph graph(rank);
    for (int round = 0; round < replays; ++round) {
      faults += check("replay", round, [&] {
        graph.replay();
        synchronize(options.device, rank.stream.get());
      });
    }
    // Replays that follow each other without a host in between, ranks out of step; the last one's result counts.
    faults += check("replays in a row", 99, [&] {
      for (int i = 0; i < replays; ++i) graph.replay();
      synchronize(options.device, rank.stream.get());
    });
    faults += check("run after replays", 100, [&] { rank.run(); });
    if (!faults.empty()) return faults;
  }
  return "ok";
}

/// Runs until something happens to another rank.
std::string run_on(const ProcessOptions& options, const std::string& name) {
  const cuda::CurrentDevice current(0);
  reach(options.device);
  const auto transport = make_process_transport(name, options);
  DeviceRank rank(problem(), options_of(ScheduleKind::p2p), *transport);
  rank.tensors.fill_inputs(problem(), 1);
  settle(options.device);
  for (int i = 0; i < 1000; ++i) {
    rank.run();
    (void)transport->all_gather_text("");
  }
  return "nothing happened";
}

std::string with_fault(ProcessOptions options, const std::string& name, Fault::Kind kind) {
  options.fault = {kind, 1, 5};
  return run_on(options, name);
}

/// Rank 1 dies while the others replay.
std::string dies_in_replay(const ProcessOptions& options, const std::string& name) {
  const cuda::CurrentDevice current(0);
  reach(options.device);
  const auto transport = make_process_transport(name, options);
  DeviceRank rank(problem(), options_of(ScheduleKind::p2p), *transport);
  rank.tensors.fill_inputs(problem(), 1);
  settle(options.device);
  rank.run();
  RankGraph graph(rank);
  (void)transport->all_gather_text("");
  if (options.group.rank == 1) std::raise(SIGKILL);
  for (int i = 0; i < 3; ++i) graph.replay();
  synchronize(options.device, rank.stream.get());
  (void)transport->all_gather_text("");
  return "nothing happened";
}

const RegisterBody kStrided("strided", strided);
const RegisterBody kAttention("attention", attention);
const RegisterBody kDies("dies", [](const ProcessOptions& options, const std::string& name) {
  return with_fault(options, name, Fault::Kind::dies);
});
const RegisterBody kStalls("stalls", [](const ProcessOptions& options, const std::string& name) {
  return with_fault(options, name, Fault::Kind::stalls);
});
const RegisterBody kThrows("throws", [](const ProcessOptions& options, const std::string& name) {
  return with_fault(options, name, Fault::Kind::throws);
});
const RegisterBody kDiesInReplay("dies_in_replay", dies_in_replay);

}  // namespace
}  // namespace rotunda::testing
