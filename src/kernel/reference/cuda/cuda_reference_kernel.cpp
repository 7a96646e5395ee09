#include "kernel/reference/cuda/cuda_reference_kernel.hpp"

#include "base/cuda/check.hpp"

namespace rotunda {
namespace {

constexpr int kMaxHeadDim = 512;  // a tile's rows lie in shared memory as fp32

class CudaReferenceKernel final : public Kernel {
 public:
  [[nodiscard]] std::string name() const override { return "reference"; }
  [[nodiscard]] KernelCapabilities capabilities() const override {
    return {.automatic = false, .device = Device::Kind::cuda};
  }
  [[nodiscard]] std::string description() const override { return "float64 tensor cores; never chosen by auto"; }

  [[nodiscard]] std::optional<std::string> refuse(const Problem& problem, const Device&) const override {
    if (problem.d > kMaxHeadDim || problem.d_v > kMaxHeadDim) {
      return fmt::format("reference on CUDA devices serves head dims 1 to {}, not d={} d_v={}", kMaxHeadDim, problem.d,
                         problem.d_v);
    }
    return std::nullopt;
  }
  [[nodiscard]] std::int64_t workspace_bytes(const Problem&, const CallShape&) const override { return 0; }

  void forward(const ForwardArgs& args, const KernelContext& context) const override {
    check(args.slices, args.device_slices);
    const cuda::CurrentDevice current(context.device.index);
    reference::cuda_forward(args, context.stream);
  }
  void backward(const BackwardArgs& args, const KernelContext& context) const override {
    check(args.slices, args.device_slices);
    const cuda::CurrentDevice current(context.device.index);
    reference::cuda_backward(args, context.stream);
  }

 private:
  static void check(std::span<const Slice> slices, const Slice* device_slices) {
    ROTUNDA_CHECK(slices.empty() || device_slices != nullptr);
  }
};

}  // namespace

const Kernel& cuda_reference_kernel() {
  static const CudaReferenceKernel kernel;
  return kernel;
}

}  // namespace rotunda
