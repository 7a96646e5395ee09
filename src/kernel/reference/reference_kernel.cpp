#include "kernel/reference/reference_kernel.hpp"

#include "kernel/reference/rows.hpp"

namespace rotunda {
namespace {

class ReferenceKernel final : public Kernel {
 public:
  [[nodiscard]] std::string name() const override { return "reference"; }
  [[nodiscard]] KernelCapabilities capabilities() const override { return {.automatic = false}; }
  [[nodiscard]] std::string description() const override { return "float64, row by row; never chosen by auto"; }
  [[nodiscard]] std::optional<std::string> refuse(const Problem&, const Device&) const override { return std::nullopt; }

  [[nodiscard]] std::int64_t workspace_bytes(const Problem& problem, const CallShape& call) const override {
    const std::int64_t doubles = call.backward ? reference::backward_scratch(call.rows_k, problem.d, problem.d_v)
                                               : reference::forward_scratch(call.rows_k, problem.d, problem.d_v);
    return call.threads * doubles * static_cast<std::int64_t>(sizeof(double));
  }

  void forward(const ForwardArgs& args, const KernelContext& context) const override {
    reference::forward(args, context);
  }
  void backward(const BackwardArgs& args, const KernelContext& context) const override {
    reference::backward(args, context);
  }
};

}  // namespace

const Kernel& reference_kernel() {
  static const ReferenceKernel kernel;
  return kernel;
}

}  // namespace rotunda
