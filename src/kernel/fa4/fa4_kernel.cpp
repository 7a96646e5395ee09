#include "kernel/fa4/fa4_kernel.hpp"

#include <algorithm>

#include "base/cuda/check.hpp"
#include "base/cuda/compute_capability.hpp"
#include "base/fail.hpp"
#include "kernel/fa4/needs.hpp"
#include "kernel/fa4/passes.hpp"

namespace rotunda {
namespace fa4 {
namespace {

constexpr cuda::ComputeCapability kHopper{9, 0};

class Fa4Kernel final : public Kernel {
 public:
  [[nodiscard]] std::string name() const override { return "fa4"; }

  [[nodiscard]] KernelCapabilities capabilities() const override {
    return {.accumulates = true,
            .slices = true,
            .row_max = false,
            .deterministic = true,
            .automatic = true,
            .reads_out = false,
            .confines_nan = false,
            .narrow_gradients = true,
            .alignment = 16,
            .device = Device::Kind::cuda};
  }

  [[nodiscard]] std::string description() const override { return describe_exported(); }

  [[nodiscard]] std::optional<std::string> refuse(const Problem& problem, const Device& device) const override {
    if (auto reason = fa4::refuse(problem)) return reason;
    if (!device.is_cuda()) return std::nullopt;
    const cuda::ComputeCapability found = cuda::compute_capability(device.index);
    if (found == kHopper) return std::nullopt;
    return fmt::format("fa4 is built for compute capability {}; {} has {}", cuda::to_string(kHopper), to_string(device),
                       cuda::to_string(found));
  }

  [[nodiscard]] std::optional<std::string> refuse_call(const Problem& problem, const CallShape& call) const override {
    return fa4::refuse_call(problem, call);
  }

  [[nodiscard]] std::int64_t workspace_bytes(const Problem& problem, const CallShape& call) const override {
    if (call.device.is_cuda()) load_for(problem, call);
    return fa4::workspace_bytes(problem, call);
  }

  void forward(const ForwardArgs& args, const KernelContext& context) const override {
    const cuda::CurrentDevice current(context.device.index);
    fa4::forward(forward_kernel(args.q.dtype, args.q.dim(), args.v.dim()), args, context);
  }

  void backward(const BackwardArgs& args, const KernelContext& context) const override {
    const bool whole_keys =
        args.dk.dtype != DType::fp32 && args.init_dkv && args.heads.group == 1 && args.q.heads() == args.k.heads();
    const cuda::CurrentDevice current(context.device.index);
    fa4::backward(backward_kernels(args.q.dtype, args.q.dim(), args.v.dim(), args.deterministic, whole_keys), args,
                  context);
  }

 private:
  /// A plan in the making: its kernels are on their device before the first call.
  static void load_for(const Problem& p, const CallShape& call) {
    const cuda::CurrentDevice current(call.device.index);
    const auto load_both = [](const Exported* kernel) {
      if (kernel == nullptr) return;
      load(*kernel);
      if (const Exported* twin = twin_for_one(*kernel)) load(*twin);
    };
    if (!call.backward) return load_both(&forward_kernel(p.dtype, p.d, p.d_v));
    const BackwardKernels kernels = backward_kernels(p.dtype, p.d, p.d_v, p.deterministic, p.h_q == p.h_kv);
    load_both(kernels.any);
    load_both(kernels.direct);
  }
};

}  // namespace
}  // namespace fa4

const Kernel& fa4_kernel() {
  static const fa4::Fa4Kernel kernel;
  return kernel;
}

}  // namespace rotunda
