#include "kernel/mma/mma_kernel.hpp"

#include "base/cuda/check.hpp"
#include "base/cuda/compute_capability.hpp"
#include "base/fail.hpp"
#include "kernel/mma/call.hpp"

namespace rotunda {
namespace mma {
namespace {

constexpr int kMostHeadDim = 512;
constexpr int kHeadDimStep = 8;
constexpr cuda::ComputeCapability kOldest{8, 0};
constexpr std::int64_t kMostRows = std::int64_t{1} << 30;  // what bands are clamped to (runs.cuh)

int shared_bytes_of(int device) {
  int bytes = 0;
  ROTUNDA_CUDA(cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device));
  return bytes;
}

std::optional<std::string> refuse_device(const Problem& problem, const Device& device) {
  const cuda::ComputeCapability found = cuda::compute_capability(device.index);
  if (found < kOldest) {
    return fmt::format("mma needs compute capability {}; {} has {}", cuda::to_string(kOldest), to_string(device),
                       cuda::to_string(found));
  }
  return refuse_memory(problem, shared_bytes_of(device.index));
}

class MmaKernel final : public Kernel {
 public:
  [[nodiscard]] std::string name() const override { return "mma"; }

  [[nodiscard]] KernelCapabilities capabilities() const override {
    return {.narrow_gradients = true, .device = Device::Kind::cuda};
  }

  [[nodiscard]] std::string description() const override {
    return fmt::format("tensor cores of compute capability {} and later, head dims up to {}", cuda::to_string(kOldest),
                       kMostHeadDim);
  }

  [[nodiscard]] std::optional<std::string> refuse(const Problem& problem, const Device& device) const override {
    if (problem.dtype == DType::fp32) return "mma serves bf16 and fp16, not fp32";
    const auto serves = [](int dim) { return dim <= kMostHeadDim && dim % kHeadDimStep == 0; };
    if (!serves(problem.d) || !serves(problem.d_v)) {
      return fmt::format("mma serves head dims up to {} that are multiples of {}, not d={} d_v={}", kMostHeadDim,
                         kHeadDimStep, problem.d, problem.d_v);
    }
    if (problem.s_q > kMostRows || problem.s_k > kMostRows) {
      return fmt::format("mma serves up to {} rows, not s_q={} s_k={}", kMostRows, problem.s_q, problem.s_k);
    }
    if (device.is_cuda()) return refuse_device(problem, device);
    return std::nullopt;
  }

  [[nodiscard]] std::int64_t workspace_bytes(const Problem&, const CallShape&) const override { return 0; }

  void forward(const ForwardArgs& args, const KernelContext& context) const override {
    const cuda::CurrentDevice current(context.device.index);
    mma::forward(args, shared_bytes_of(context.device.index), context.stream);
  }
  void backward(const BackwardArgs& args, const KernelContext& context) const override {
    const cuda::CurrentDevice current(context.device.index);
    mma::backward(args, shared_bytes_of(context.device.index), context.stream);
  }
};

}  // namespace
}  // namespace mma

const Kernel& mma_kernel() {
  static const mma::MmaKernel kernel;
  return kernel;
}

}  // namespace rotunda
