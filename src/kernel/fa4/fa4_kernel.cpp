#include "kernel/fa4/fa4_kernel.hpp"

#include <algorithm>

#include "base/cuda/check.hpp"
#include "base/fail.hpp"
#include "kernel/fa4/needs.hpp"
#include "kernel/fa4/passes.hpp"

namespace rotunda {
namespace fa4 {
namespace {

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
    int major = 0, minor = 0;
    ROTUNDA_CUDA(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device.index));
    ROTUNDA_CUDA(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device.index));
    if (major == 9 && minor == 0) return std::nullopt;
    return fmt::format("fa4 is built for compute capability 9.0; {} has {}.{}", to_string(device), major, minor);
  }

  [[nodiscard]] std::optional<std::string> refuse_call(const Problem& problem, const CallShape& call) const override {
    return fa4::refuse_call(problem, call);
  }

  [[nodiscard]] std::int64_t workspace_bytes(const Problem& problem, const CallShape& call) const override {
    if (call.device.is_cuda()) {  // a plan in the making: its kernels are loaded before the first call
      const cuda::CurrentDevice current(call.device.index);
      load(exported_for(problem, call.backward));
    }
    return fa4::workspace_bytes(problem, call);
  }

  void forward(const ForwardArgs& args, const KernelContext& context) const override {
    const Exported* kernel = find_exported(Kind::forward, args.q.dtype, dim(args.q), dim(args.v));
    ROTUNDA_CHECK(kernel != nullptr);
    const cuda::CurrentDevice current(context.device.index);
    fa4::forward(*kernel, args, context);
  }

  void backward(const BackwardArgs& args, const KernelContext& context) const override {
    const Kind kind = args.deterministic ? Kind::deterministic : Kind::backward;
    const Exported* kernel = find_exported(kind, args.q.dtype, dim(args.q), dim(args.v));
    ROTUNDA_CHECK(kernel != nullptr);
    const cuda::CurrentDevice current(context.device.index);
    fa4::backward(*kernel, args, context);
  }

 private:
  static int dim(const TensorView& view) { return static_cast<int>(view.dim()); }
};

}  // namespace
}  // namespace fa4

const Kernel& fa4_kernel() {
  static const fa4::Fa4Kernel kernel;
  return kernel;
}

}  // namespace rotunda
