// One call of a kernel that runs on a CUDA device, with tensors that lie on the host: each is copied there before the
// call and back after it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "kernel/kernel.hpp"
#include "rotunda/device.hpp"

namespace rotunda::testing {

class DeviceCall {
 public:
  explicit DeviceCall(const Device& device) : device_(device), stream_(device) {}

  /// The view's memory, whatever it holds, on the device. Empty views stay empty.
  [[nodiscard]] TensorView take(const TensorView& view) {
    if (view.data == nullptr) return view;
    std::int64_t elements = 1;  // from the first to the last
    for (std::size_t axis = 0; axis < 4; ++axis) {
      elements += std::max<std::int64_t>(0, view.shape[axis] - 1) * view.stride[axis];
    }
    TensorView copy = view;
    copy.data = take(view.data, view.empty() ? 0 : elements * static_cast<std::int64_t>(size_of(view.dtype)));
    return copy;
  }
  [[nodiscard]] float* take(float* values, std::int64_t count) {
    if (values == nullptr) return nullptr;
    return static_cast<float*>(take(static_cast<void*>(values), count * static_cast<std::int64_t>(sizeof(float))));
  }
  [[nodiscard]] const Slice* take(std::span<const Slice> slices) {
    if (slices.empty()) return nullptr;
    lists_.emplace_back(device_, static_cast<std::int64_t>(slices.size_bytes()));
    copy_bytes(lists_.back().data(), slices.data(), lists_.back().bytes(), device_, stream_.get());
    return reinterpret_cast<const Slice*>(lists_.back().data());
  }

  void run(const Kernel& kernel, const Problem& problem, const ForwardArgs& host, ThreadPool& threads) {
    ForwardArgs args = host;
    for (TensorView* view : {&args.q, &args.k, &args.v, &args.acc, &args.lse, &args.lse_low, &args.out}) {
      *view = take(*view);
    }
    args.max_logit = take(args.max_logit, args.q.heads());
    args.device_slices = take(args.slices);
    CallShape shape = shape_of(args.q, args.k, args.slices, threads);
    shape.init = args.init;
    shape.last = args.last;
    const DeviceMemory workspace = poisoned(kernel.workspace_bytes(problem, shape));
    kernel.forward(args, context(workspace, threads));
    bring_back();
  }
  void run(const Kernel& kernel, const Problem& problem, const BackwardArgs& host, ThreadPool& threads) {
    BackwardArgs args = host;
    for (TensorView* view :
         {&args.q, &args.k, &args.v, &args.dout, &args.lse, &args.delta, &args.out, &args.dq, &args.dk, &args.dv}) {
      *view = take(*view);
    }
    args.device_slices = take(args.slices);
    CallShape shape = shape_of(args.q, args.k, args.slices, threads);
    shape.backward = true;
    shape.init_dq = args.init_dq;
    shape.init_dkv = args.init_dkv;
    shape.narrow_dq = args.dq.dtype != DType::fp32;
    shape.narrow_dkv = args.dk.dtype != DType::fp32;
    const DeviceMemory workspace = poisoned(kernel.workspace_bytes(problem, shape));
    kernel.backward(args, context(workspace, threads));
    bring_back();
  }

 private:
  struct Pair {
    void* host;
    DeviceMemory memory;
    std::int64_t bytes;
  };

  [[nodiscard]] void* take(void* data, std::int64_t bytes) {
    pairs_.push_back({data, DeviceMemory(device_, std::max<std::int64_t>(bytes, 1)), bytes});
    copy_bytes(pairs_.back().memory.data(), data, bytes, device_, stream_.get());
    return pairs_.back().memory.data();
  }
  [[nodiscard]] CallShape shape_of(const TensorView& q, const TensorView& k, std::span<const Slice> slices,
                                   const ThreadPool& threads) const {
    return {.slices = slices,
            .batch = q.batch(),
            .rows_q = q.rows(),
            .rows_k = k.rows(),
            .heads_q = static_cast<int>(q.heads()),
            .heads_kv = static_cast<int>(k.heads()),
            .threads = threads.threads(),
            .device = device_};
  }
  [[nodiscard]] DeviceMemory poisoned(std::int64_t bytes) const {
    DeviceMemory memory(device_, std::max<std::int64_t>(bytes, 1));
    set_bytes(memory.data(), 0xff, memory.bytes(), device_, stream_.get());
    return memory;
  }
  [[nodiscard]] KernelContext context(const DeviceMemory& workspace, ThreadPool& threads) const {
    return {threads, {workspace.data(), static_cast<std::size_t>(workspace.bytes())}, device_, stream_.get()};
  }
  void bring_back() const {
    for (const Pair& pair : pairs_) copy_bytes(pair.host, pair.memory.data(), pair.bytes, device_, stream_.get());
    synchronize(device_, stream_.get());
  }

  Device device_;
  OwnedStream stream_;
  std::vector<Pair> pairs_;
  std::vector<DeviceMemory> lists_;
};

}  // namespace rotunda::testing
