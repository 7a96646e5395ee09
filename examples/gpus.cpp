// Causal attention, forward and backward, over all GPUs of this host from one process; ranks share a GPU where there
// are fewer. Says so and does nothing where there is no GPU.
#include <algorithm>
#include <cstdio>
#include <vector>

#include "rotunda/attention.hpp"

using namespace rotunda;

/// One rank's rows of a tensor in its GPU's memory, [1, rows, heads, dim].
struct Local {
  DeviceMemory memory;
  TensorView view;

  Local(const Device& device, DType dtype, std::int64_t rows, std::int64_t heads, std::int64_t dim)
      : memory(device, rows * heads * dim * static_cast<std::int64_t>(size_of(dtype))),
        view(make_view(memory.data(), dtype, Layout::bshd, 1, rows, heads, dim)) {
    set_bytes(memory.data(), 0x3c, memory.bytes(), device, {});  // bf16 numbers near 0.01; a model brings its own
  }
};

static void train_step(const Problem& problem, Transport& transport) {
  const auto plan = agree_on_plan(problem, {}, transport);
  const Device device = plan->device;
  const std::int64_t rows = plan->shard.q.rows(transport.rank());
  const auto local = [&](int heads, DType dtype = DType::bf16, int dim = 128) {
    return Local(device, dtype, rows, heads, dim);
  };
  Local q = local(problem.h_q), k = local(problem.h_kv), v = local(problem.h_kv), out = local(problem.h_q);
  Local lse = local(problem.h_q, DType::fp32, 1), dout = local(problem.h_q);
  Local dq = local(problem.h_q), dk = local(problem.h_kv), dv = local(problem.h_kv);
  synchronize(device, {});

  Tensors tensors;
  tensors.q = q.view, tensors.k = k.view, tensors.v = v.view, tensors.out = out.view, tensors.lse = lse.view;
  tensors.dout = dout.view, tensors.dq = dq.view, tensors.dk = dk.view, tensors.dv = dv.view;
  const OwnedStream stream(device);  // or the one that your model runs on
  Attention attention(plan, transport);
  attention.forward(tensors, stream.get());
  attention.backward(tensors, stream.get());
  synchronize(device, stream.get());
  std::printf("rank %d: %lld rows on %s, %s\n", transport.rank(), static_cast<long long>(rows),
              to_string(device).c_str(), plan->summary().c_str());
}

int main() {
  if (cuda_device_count() == 0) {
    std::printf("nothing to do: %s\n", why_no_cuda().c_str());
    return 0;
  }
  std::vector<int> devices;
  for (int i = 0; i < cuda_device_count(); ++i) devices.push_back(i);
  LocalOptions options;
  options.devices = devices;
  auto group = make_local_group(std::max(2, cuda_device_count()), options);
  const Problem problem = parse_problem("s_q=8192 h_q=16 h_kv=4 d=128 mask=causal grad=1");
  run_ranks(group, [&](Transport& transport) { train_step(problem, transport); });
}
