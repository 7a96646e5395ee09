#include "kernel/cudnn/operations.hpp"

#include <algorithm>

#include "base/cuda/check.hpp"
#include "base/cuda/strided_copy.hpp"
#include "base/fail.hpp"
#include "kernel/cudnn/small_kernels.hpp"
#include "kernel/elementwise/cuda/merge.hpp"

namespace rotunda::cudnn {
namespace {

constexpr std::int64_t kAlignment = 256;

std::int64_t aligned(std::int64_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

class DeviceOperations final : public Operations {
 public:
  explicit DeviceOperations(const KernelContext& context)
      : Operations(Scratch(context.workspace)),
        device_(context.device),
        stream_(context.stream),
        elementwise_(cuda_elementwise(context.device, context.stream)) {}

  void fill(const TensorView& to, float value) override {
    if (!to.empty()) elementwise_->fill(to, value);
  }
  void convert(const TensorView& from, const TensorView& to) override { elementwise_->convert(from, to); }
  void copy(const TensorView& from, const TensorView& to) override { cuda::copy(from, to, device_.index, stream_); }
  void add(const TensorView& from, const TensorView& to) override { elementwise_->add(from, to, {}); }
  void zero(const TensorView& to) override { set_bytes(to.data, 0, to.bytes(), device_, stream_); }
  void clear_infinities(const TensorView& view) override {
    const cuda::CurrentDevice current(device_.index);
    cudnn::clear_infinities(static_cast<float*>(view.data), view.elements(), stream_);
  }
  void merge(const TensorView& partial_out, const TensorView& partial_lse, const RowState& state, const TensorView& out,
             bool init, bool last) override {
    cuda::merge({partial_out, partial_lse}, state, out, {.init = init, .last = last}, device_, stream_);
  }

  void attend(const GraphCall& call) override {
    const cuda::CurrentDevice current(device_.index);
    const Plan& graph = plan(call.key);
    const Scratch::Frame frame(scratch);
    auto* ints = reinterpret_cast<int*>(scratch.take(call.array_bytes()));
    const auto write = [&](const std::vector<int>& values) {
      int* at = ints;
      write_ints(at, values, stream_);
      ints += values.size();
      return at;
    };
    Bindings bindings = call.bindings;
    if (call.key.lengths) {
      bindings.lengths_q = write(call.lengths_q);
      bindings.lengths_k = write(call.lengths_k);
    }
    for (const auto& offsets : call.offsets) bindings.offsets.push_back(write(offsets));
    graph.execute(bindings, scratch.take(graph.workspace_bytes()), stream_);
  }

 private:
  Device device_;
  Stream stream_;
  std::unique_ptr<Elementwise> elementwise_;
};

}  // namespace

Scratch::Scratch(std::span<std::byte> memory) : measures_(memory.data() == nullptr) {
  if (measures_) return;
  const auto at = reinterpret_cast<std::uintptr_t>(memory.data());
  const std::int64_t skipped = aligned(static_cast<std::int64_t>(at)) - static_cast<std::int64_t>(at);
  size_ = static_cast<std::int64_t>(memory.size()) - skipped;
  base_ = memory.data() + skipped;
}

std::byte* Scratch::take(std::int64_t bytes) {
  const std::int64_t begin = used_;
  used_ += aligned(bytes);
  peak_ = std::max(peak_, used_);
  if (measures_) return nullptr;
  if (used_ > size_) {
    fail(ErrorKind::internal, "the cudnn kernel needs {} bytes of workspace and was given {}", bytes_needed(), size_);
  }
  return base_ + begin;
}

TensorView Scratch::take(DType dtype, Layout layout, const std::array<std::int64_t, 4>& shape) {
  const std::int64_t bytes = shape[0] * shape[1] * shape[2] * shape[3] * static_cast<std::int64_t>(size_of(dtype));
  return make_view(take(bytes), dtype, layout, shape[0], shape[1], shape[2], shape[3]);
}

std::int64_t Scratch::bytes_needed() const {
  return peak_ == 0 ? 0 : peak_ + kAlignment;
}

std::unique_ptr<Operations> device_operations(const KernelContext& context) {
  return std::make_unique<DeviceOperations>(context);
}

void Measurement::attend(const GraphCall& call) {
  if (refusal) return;
  refusal = saved_ == nullptr ? refuse(call.key) : refuse(call.key, *saved_);
  if (refusal) return;
  const Scratch::Frame frame(scratch);
  (void)scratch.take(call.array_bytes());
  if (workspace_ == Workspace::counted && saved_ == nullptr) {
    library_bytes = std::max(library_bytes, plan(call.key).workspace_bytes());
  }
  (void)scratch.take(library_bytes);
}

}  // namespace rotunda::cudnn
