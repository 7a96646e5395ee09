// The kernel's two directions: what a call needs, and the call.
#pragma once

#include <cstdint>
#include <vector>

#include "kernel/fa4/exported.hpp"
#include "kernel/fa4/pieces.hpp"
#include "kernel/kernel.hpp"

namespace rotunda::fa4 {

/// Places in a workspace, in bytes from its first aligned address.
class WorkspaceLayout {
 public:
  static constexpr std::int64_t kAlignment = 256;

  [[nodiscard]] std::int64_t take(std::int64_t bytes) {
    const std::int64_t begin = bytes_;
    bytes_ += (bytes + kAlignment - 1) / kAlignment * kAlignment;
    return begin;
  }
  /// Of a workspace that begins anywhere.
  [[nodiscard]] std::int64_t bytes() const { return bytes_ + kAlignment; }

 private:
  std::int64_t bytes_ = 0;
};

/// Extents of the buffers of a call.
struct CallExtents {
  std::int64_t batch = 0, rows_q = 0, rows_k = 0, heads_q = 0, heads_kv = 0;
};

/// Forward: one launch over all rows where no row is in two pieces. Else the first begins the state, in the caller's
/// accumulators or in the workspace, and the others resume it.
struct ForwardPlan {
  ForwardPlan(const Exported& kernel, std::span<const Slice> slices, const CallExtents& extents, int d_v, bool init,
              bool last);

  std::vector<Launch> launches;
  WorkspaceLayout layout;
  std::int64_t acc = 0, low = 0;     ///< where the state lies that the caller has no place for
  bool own_acc = false;              ///< acc is needed
  std::vector<std::int64_t> tables;  ///< of each launch
};

/// The exported kernels that may serve a backward.
struct BackwardKernels {
  const Exported* any = nullptr;     ///< takes any slices
  const Exported* direct = nullptr;  ///< dK and dV are made whole by one launch, if it can; may be absent
};

/// Backward: sums in tiles of the workspace, zeroed, added to by the launches, then placed.
struct BackwardPlan {
  BackwardPlan(const BackwardKernels& kernels, std::span<const Slice> slices, const CallExtents& extents, bool init_dq,
               bool init_dkv);

  const Exported* kernel = nullptr;
  BackwardLaunches work;
  std::vector<Segment> gaps_q,
      gaps_k;  ///< rows of no piece that are to become zeros; their sums begin after the others
  std::int64_t rows_q = 0, rows_k = 0;  ///< of the sums, gaps included
  WorkspaceLayout layout;
  std::int64_t lse = 0, delta = 0;               ///< statistics in the order of sums
  std::int64_t dq = 0, dk = 0, dv = 0, end = 0;  ///< sums lie in [dq, end)
  std::int64_t segments_q = 0, segments_k = 0;
  std::vector<std::int64_t> tables;
  std::int64_t turns_q = 0, turns_k = 0, turns_v = 0, turns_end = 0;  ///< of the widest launch, deterministic

  [[nodiscard]] bool is_direct() const { return kernel->kind == Kind::direct; }
};

/// ForwardArgs' and BackwardArgs' contracts, for views that fold (fold.hpp). The device is current.
void forward(const Exported& kernel, const ForwardArgs& args, const KernelContext& context);
void backward(const BackwardKernels& kernels, const BackwardArgs& args, const KernelContext& context);

}  // namespace rotunda::fa4
