// Buffers of a program bound to memory: the user's tensors and one workspace allocation.
#pragma once

#include <cstddef>
#include <vector>

#include "rotunda/attention.hpp"
#include "rotunda/schedule.hpp"

namespace rotunda {

/// The views of a program's buffers for one run.
class BoundBuffers {
 public:
  /// workspace: at least program.workspace_bytes, aligned. The program, the tensors and the memory must outlive this.
  BoundBuffers(const Program& program, const Tensors& tensors, std::byte* workspace);

  /// A region as a view; empty for no region.
  [[nodiscard]] TensorView view(const Region& region) const;
  [[nodiscard]] const TensorView& user(Binding binding) const;
  /// Empty where lse is not differentiated.
  [[nodiscard]] const TensorView& minus_dlse() const { return tensors_.minus_dlse; }

 private:
  const Program& program_;
  const Tensors& tensors_;
  std::vector<TensorView> views_;  ///< by buffer
};

/// The tensor that a binding names.
[[nodiscard]] const TensorView& tensor_of(const Tensors& tensors, Binding binding);

/// Checks that every tensor a program needs is there, with the right shape, dtype and strides.
/// @throws Error bad_input naming the tensor, what it is and what it should be
void check_tensors(const Program& program, const Tensors& tensors);

/// Checks that the tensors a kernel reads and writes as they lie suit it. @throws Error unsupported naming the tensor
void check_alignment(const Program& program, const Tensors& tensors, int alignment, const std::string& kernel);

/// Checks that what a CUDA device will touch lies in memory that it can reach. Nothing on a CPU.
/// @throws Error bad_input naming the tensor and where it is
void check_memory(const Program& program, const Tensors& tensors, const Device& device);

}  // namespace rotunda
