#include "kernel/cudnn/cudnn_kernel.hpp"

#include <algorithm>

#include "base/cuda/compute_capability.hpp"
#include "base/fail.hpp"
#include "kernel/cudnn/library.hpp"
#include "kernel/cudnn/needs.hpp"
#include "kernel/cudnn/passes.hpp"
#include "kernel/grouping.hpp"

namespace rotunda {
namespace cudnn {
namespace {

constexpr int kMostHeadDim = 256;
constexpr int kHeadDimStep = 8;
constexpr cuda::ComputeCapability kOldest{8, 0};

std::vector<GroupedCall> calls_of(std::span<const Slice> slices) {
  Grouping grouping = group_slices(slices);
  if (grouping.refusal) fail(ErrorKind::unsupported, "kernel cudnn: {}", *grouping.refusal);
  return std::move(grouping.calls);
}

class CudnnKernel final : public Kernel {
 public:
  [[nodiscard]] std::string name() const override { return "cudnn"; }

  [[nodiscard]] KernelCapabilities capabilities() const override {
    return {.accumulates = false,
            .slices = false,
            .row_max = false,
            .deterministic = true,
            .automatic = true,
            .reads_out = true,
            .confines_nan = false,
            .narrow_gradients = true,
            .alignment = 16,
            .device = Device::Kind::cuda};
  }

  [[nodiscard]] std::string description() const override {
    const Library& found = library();
    return fmt::format("cuDNN {} ({})", version_text(found.version), found.path);
  }

  [[nodiscard]] std::optional<std::string> missing() const override {
    if (library().handle == nullptr) return library().problem;
    return std::nullopt;
  }

  [[nodiscard]] std::optional<std::string> refuse(const Problem& problem, const Device& device) const override {
    if (problem.dtype == DType::fp32) return "cudnn serves bf16 and fp16, not fp32";
    const auto serves = [](int dim) { return dim <= kMostHeadDim && dim % kHeadDimStep == 0; };
    if (!serves(problem.d) || !serves(problem.d_v)) {
      return fmt::format("cudnn serves head dims up to {} that are multiples of {}, not d={} d_v={}", kMostHeadDim,
                         kHeadDimStep, problem.d, problem.d_v);
    }
    if (library().handle == nullptr) return library().problem;
    if (!device.is_cuda()) return std::nullopt;
    const cuda::ComputeCapability found = cuda::compute_capability(device.index);
    if (found >= kOldest) return std::nullopt;
    return fmt::format("cudnn needs compute capability {}; {} has {}", to_string(kOldest), to_string(device),
                       to_string(found));
  }

  [[nodiscard]] std::optional<std::string> refuse_call(const Problem& problem, const CallShape& call) const override {
    return cudnn::refuse_call(problem, call);
  }

  [[nodiscard]] std::int64_t workspace_bytes(const Problem& problem, const CallShape& call) const override {
    return cudnn::workspace_bytes(problem, call);
  }

  void forward(const ForwardArgs& args, const KernelContext& context) const override {
    const auto operations = device_operations(context);
    cudnn::forward(args, calls_of(args.slices), context.device.index, *operations);
  }

  void backward(const BackwardArgs& args, const KernelContext& context) const override {
    const auto operations = device_operations(context);
    cudnn::backward(args, calls_of(args.slices), context.device.index, *operations);
  }
};

}  // namespace
}  // namespace cudnn

const Kernel& cudnn_kernel() {
  static const cudnn::CudnnKernel kernel;
  return kernel;
}

}  // namespace rotunda
