// Runs a problem over ranks as threads: scatter, plan, forward, backward, gather. Local tensors and workspaces are
// poisoned with NaN. Needs rotunda_execute.
#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <mutex>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "base/environment.hpp"
#include "base/memory.hpp"
#include "kernel/kernel.hpp"
#include "rotunda/attention.hpp"
#include "rotunda/device.hpp"
#include "rotunda/plan.hpp"
#include "support/random_tensors.hpp"

namespace rotunda::testing {

struct DistributedOptions {
  PlanOptions plan;
  int ranks = 1;
  LocalOptions local;
  std::int64_t gap = 0;                              ///< padded strides of the local tensors
  std::function<void(Attention&, int rank)> before;  ///< called before forward
};

/// A rank's tensors in the problem's layout, padded strides, NaN where nothing was scattered. On a CUDA device the plan
/// works on copies there, which take() fills and give() fetches.
class LocalTensors {
 public:
  LocalTensors(const Plan& plan, std::int64_t gap) : plan_(plan), gap_(gap) {
    const Problem& p = plan.problem;
    const std::int64_t rows_q = plan.shard.q.rows(plan.rank);
    const std::int64_t rows_k = plan.shard.k.rows(plan.rank);
    views_.q = tensor(p.dtype, rows_q, p.h_q, p.d);
    views_.k = tensor(p.dtype, rows_k, p.h_kv, p.d);
    views_.v = tensor(p.dtype, rows_k, p.h_kv, p.d_v);
    views_.out = tensor(p.dtype, rows_q, p.h_q, p.d_v);
    views_.lse = rows(p.batches(), rows_q, p.h_q);
    if (p.max_logit) views_.max_logit = heads(p.h_q);
    if (!p.grad) return;
    views_.dout = tensor(p.dtype, rows_q, p.h_q, p.d_v);
    views_.dq = tensor(p.dtype, rows_q, p.h_q, p.d);
    views_.dk = tensor(p.dtype, rows_k, p.h_kv, p.d);
    views_.dv = tensor(p.dtype, rows_k, p.h_kv, p.d_v);
    if (p.sink == Sink::learnable) views_.dsink = heads(p.h_q);
  }

  /// What attention works on.
  [[nodiscard]] Tensors& views() { return plan_.device.is_cuda() ? device_views_ : views_; }
  /// Where the host can read results after give().
  [[nodiscard]] const Tensors& on_host() const { return views_; }

  void take(const Tensors& whole) {
    const int rank = plan_.rank;
    scatter(plan_.shard.q, rank, whole.q, views_.q);
    scatter(plan_.shard.k, rank, whole.k, views_.k);
    scatter(plan_.shard.k, rank, whole.v, views_.v);
    if (plan_.problem.grad) scatter(plan_.shard.q, rank, whole.dout, views_.dout);
    if (whole.sink.data != nullptr) {
      views_.sink = heads(plan_.problem.h_q);
      for (int head = 0; head < plan_.problem.h_q; ++head)
        write(views_.sink, 0, 0, head, 0, read(whole.sink, 0, 0, head));
    }
    if (plan_.device.is_cuda()) upload();
  }

  void give(const Tensors& whole) {
    const int rank = plan_.rank;
    if (plan_.device.is_cuda()) download();
    gather(plan_.shard.q, rank, views_.out, whole.out);
    gather(plan_.shard.q, rank, views_.lse, whole.lse);
    if (!plan_.problem.grad) return;
    gather(plan_.shard.q, rank, views_.dq, whole.dq);
    gather(plan_.shard.k, rank, views_.dk, whole.dk);
    gather(plan_.shard.k, rank, views_.dv, whole.dv);
  }

 private:
  std::byte* memory(std::int64_t elements, DType dtype) {
    buffers_.emplace_back(std::max<std::int64_t>(elements, 1) * static_cast<std::int64_t>(size_of(dtype)));
    std::fill_n(buffers_.back().data(), buffers_.back().bytes(), std::byte{0xff});  // NaN in every dtype
    return buffers_.back().data();
  }
  TensorView tensor(DType dtype, std::int64_t s, std::int64_t h, std::int64_t d) {
    const Problem& p = plan_.problem;
    TensorView view = make_view(nullptr, dtype, p.layout, p.batches(), s, h, d + gap_);
    view.data = memory(view.elements(), dtype);
    view.shape[3] = d;
    return view;
  }
  TensorView rows(std::int64_t b, std::int64_t s, std::int64_t h) {
    return make_row_view(reinterpret_cast<float*>(memory(b * s * h, DType::fp32)), b, s, h);
  }
  TensorView heads(std::int64_t h) { return make_view(memory(h, DType::fp32), DType::fp32, Layout::bshd, 1, 1, h, 1); }

  /// Every host buffer's copy on the device, padding between rows and all.
  void upload() {
    device_views_ = views_;
    memory_.clear();
    for (const HostBuffer& buffer : buffers_) {
      memory_.emplace_back(plan_.device, buffer.bytes());
      copy_bytes(memory_.back().data(), buffer.data(), buffer.bytes(), plan_.device, {});
      for (TensorView Tensors::*field : kFields) {
        TensorView& view = device_views_.*field;
        if (view.data == buffer.data()) view.data = memory_.back().data();
      }
    }
    synchronize(plan_.device, {});
  }
  void download() {
    for (std::size_t i = 0; i < buffers_.size(); ++i) {
      copy_bytes(buffers_[i].data(), memory_[i].data(), buffers_[i].bytes(), plan_.device, {});
    }
    synchronize(plan_.device, {});
  }

  static constexpr TensorView Tensors::*kFields[] = {
      &Tensors::q,         &Tensors::k,    &Tensors::v,  &Tensors::sink, &Tensors::out, &Tensors::lse,
      &Tensors::max_logit, &Tensors::dout, &Tensors::dq, &Tensors::dk,   &Tensors::dv,  &Tensors::dsink};

  const Plan& plan_;
  std::int64_t gap_;
  std::vector<HostBuffer> buffers_;
  Tensors views_;
  std::vector<DeviceMemory> memory_;
  Tensors device_views_;
};

/// Where the tests of many ranks run: ROTUNDA_TEST_DEVICES=0,1 names CUDA devices, ROTUNDA_TEST_KERNEL the kernel on
/// them where a test leaves it open and the kernel serves the problem; else reference does. On the host by default.
inline void on_test_devices(const Problem& problem, DistributedOptions& options) {
  const auto devices = environment("ROTUNDA_TEST_DEVICES");
  if (!devices || !options.local.devices.empty()) return;
  std::istringstream list(*devices);
  for (std::string device; std::getline(list, device, ',');) options.local.devices.push_back(std::stoi(device));
  std::string kernel = environment("ROTUNDA_TEST_KERNEL").value_or("reference");
  const Kernel* found = find_kernel(kernel, Device::Kind::cuda);
  const bool no_row_max = problem.max_logit && found != nullptr && !found->capabilities().row_max;
  if (no_row_max || (found != nullptr && found->refuse(problem, cuda_device(options.local.devices.front())))) {
    kernel = "reference";
  }
  if (options.plan.kernel.empty() || options.plan.kernel == "cpu") options.plan.kernel = kernel;
}

/// Whole tensors in, whole results out (into tensors' outputs). dsink is summed over ranks in rank order. Returns rank
/// 0's plan.
inline std::shared_ptr<const Plan> run_distributed(const Problem& problem, const DistributedOptions& asked,
                                                   Tensors& whole) {
  DistributedOptions options = asked;
  on_test_devices(problem, options);
  auto group = make_local_group(options.ranks, options.local);
  std::shared_ptr<const Plan> first;
  std::vector<std::vector<float>> dsink(static_cast<std::size_t>(options.ranks));
  std::mutex mutex;
  run_ranks(group, [&](Transport& transport) {
    const auto plan = agree_on_plan(problem, options.plan, transport);
    LocalTensors local(*plan, options.gap);
    local.take(whole);
    Attention attention(plan, transport);
    attention.set_poison(true);
    if (options.before) options.before(attention, transport.rank());
    const OwnedStream stream(plan->device);
    attention.forward(local.views(), stream.get());
    if (problem.grad) attention.backward(local.views(), stream.get());
    synchronize(plan->device, stream.get());
    const std::scoped_lock lock(mutex);
    local.give(whole);
    if (local.on_host().dsink.data != nullptr) {
      const auto* data = static_cast<const float*>(local.on_host().dsink.data);
      dsink[static_cast<std::size_t>(transport.rank())].assign(data, data + problem.h_q);
    }
    if (transport.rank() != 0) return;
    first = plan;
    if (problem.max_logit) {
      for (int head = 0; head < problem.h_q; ++head) {
        write(whole.max_logit, 0, 0, head, 0, read(local.on_host().max_logit, 0, 0, head));
      }
    }
  });
  for (int head = 0; whole.dsink.data != nullptr && head < problem.h_q; ++head) {
    double sum = 0;
    for (const auto& part : dsink) sum += part.at(static_cast<std::size_t>(head));
    write(whole.dsink, 0, 0, head, 0, sum);
  }
  return first;
}

}  // namespace rotunda::testing
