#include "kernel/sm90/sm90_kernel.hpp"

#include "base/cuda/compute_capability.hpp"
#include "base/fail.hpp"
#include "kernel/sm90/tensor_map.hpp"
#include "kernel/sm90/wide/backward.hpp"
#include "kernel/sm90/wide/forward.hpp"

namespace rotunda {
namespace sm90 {
namespace {

constexpr cuda::ComputeCapability kHopper{9, 0};  // sm_90a: code for this one alone
constexpr int kHeadDimStep = 8;                   // 16 bytes

class Sm90Kernel final : public Kernel {
 public:
  [[nodiscard]] std::string name() const override { return "sm90"; }
  [[nodiscard]] KernelCapabilities capabilities() const override {
    return {.confines_nan = false,
            .confines_documents = false,
            .narrow_gradients = true,
            .takes_scratch = true,
            .alignment = kMapAlignment,
            .device = Device::Kind::cuda};
  }
  [[nodiscard]] std::string description() const override {
    return fmt::format("wgmma and TMA on Hopper, head dims {} to {}", wide::kLeastHeadDim, wide::kMostHeadDim);
  }

  [[nodiscard]] std::optional<std::string> refuse(const Problem& problem, const Device& device) const override {
    if (problem.dtype == DType::fp32) return "sm90 serves bf16 and fp16, not fp32";
    const auto serves = [](int dim) {
      return dim >= wide::kLeastHeadDim && dim <= wide::kMostHeadDim && dim % kHeadDimStep == 0;
    };
    if (!serves(problem.d) || !serves(problem.d_v)) {
      return fmt::format("sm90 serves head dims from {} to {} that are multiples of {}, not d={} d_v={}",
                         wide::kLeastHeadDim, wide::kMostHeadDim, kHeadDimStep, problem.d, problem.d_v);
    }
    if (problem.grad) {
      if (auto reason = wide::refuse_backward(problem)) return reason;
    }
    if (!device.is_cuda()) return std::nullopt;
    const cuda::ComputeCapability found = cuda::compute_capability(device.index);
    if (found == kHopper) return std::nullopt;
    return fmt::format("sm90 needs compute capability {}; {} has {}", to_string(kHopper), to_string(device),
                       to_string(found));
  }

  [[nodiscard]] std::optional<std::string> refuse_call(const Problem&, const CallShape& call) const override {
    constexpr std::int64_t kMostRows = std::int64_t{1} << 30;  // coordinates of a copy and offsets to them are 32 bits
    if (call.rows_q <= kMostRows && call.rows_k <= kMostRows) return std::nullopt;
    return fmt::format("sm90 takes up to {} rows in a call, not {} query rows and {} key rows", kMostRows, call.rows_q,
                       call.rows_k);
  }

  [[nodiscard]] std::int64_t workspace_bytes(const Problem& problem, const CallShape& call) const override {
    return call.backward ? wide::backward_workspace_bytes(problem, call, call.scratch)
                         : wide::forward_workspace_bytes(call);
  }

  void forward(const ForwardArgs& args, const KernelContext& context) const override {
    const cuda::CurrentDevice current(context.device.index);
    wide::forward(args, context);
  }
  void backward(const BackwardArgs& args, const KernelContext& context) const override {
    const cuda::CurrentDevice current(context.device.index);
    wide::backward(args, context, context.scratch);
  }
};

}  // namespace
}  // namespace sm90

const Kernel& sm90_kernel() {
  static const sm90::Sm90Kernel kernel;
  return kernel;
}

}  // namespace rotunda
