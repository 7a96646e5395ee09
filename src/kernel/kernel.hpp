// The kernel contract: attention over a list of slices, added to a running state.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/thread_pool.hpp"
#include "rotunda/device.hpp"
#include "rotunda/problem.hpp"
#include "rotunda/tensor.hpp"

namespace rotunda {

/// Which KV head a query head reads, for buffers that hold a part of the heads: query head i of the buffer has the
/// global number q_first + i and reads KV head (q_first + i) / group, which lies at that minus kv_first.
struct HeadMap {
  int group = 1, q_first = 0, kv_first = 0;
  [[nodiscard]] constexpr int kv(int q_head) const { return (q_first + q_head) / group - kv_first; }
};

/// Forward over slices. With P = exp(scale·S - lse) on the visible pairs, out = P·V and lse = log Σ exp(scale·S).
/// Views are [batch, row, head, dim], last axis contiguous, other strides free; q, k, v, out have the problem's dtype.
///   init: the running state is empty; acc, lse and lse_low hold anything (NaN too), and every row of them is written,
///         rows of no slice with acc = 0, lse = -inf. Otherwise acc, lse are the state so far: acc normalised, as if
///         final.
///   last: the state goes to `out` (every row of it) and lse; acc is not written (and not needed with init). Otherwise
///         to acc and lse.
/// Rows of no slice are never read from q; rows of k and v outside the slices are never read, so NaN there is harmless.
/// A NaN in a row that a slice covers reaches only what sees it (kernels that confine it).
struct ForwardArgs {
  std::span<const Slice> slices;  ///< rows of these views; query rows of different slices may coincide
  TensorView q, k, v;
  TensorView acc;              ///< fp32, as out
  TensorView lse;              ///< fp32 [batch, row, head, 1]
  TensorView out;              ///< with last
  float* max_logit = nullptr;  ///< [heads of q]: raised to the greatest scaled visible logit; nullptr: not asked
  HeadMap heads;
  double scale = 1;
  bool init = true, last = true;
  TensorView lse_low{};  ///< fp32, as lse: what fp32 lacks of the state's lse; may be absent (row_state.hpp)
  const Slice* device_slices = nullptr;  ///< `slices` in the device's memory, for kernels that run on one
};

/// Backward over slices: with dP = dout·Vᵀ and dS = P∘(dP - delta):
/// dq = scale·dS·K, dk = scale·dSᵀ·Q, dv = Pᵀ·dout, where P uses the final lse of the whole row.
/// dq, dk, dv are fp32; for kernels with narrow_gradients they may have the problem's dtype: dq with init_dq, dk and dv
/// with init_dkv.
///   init_dq: dq holds anything and every row of it is written. Otherwise it is added to.
///   init_dkv: dk and dv likewise.
struct BackwardArgs {
  std::span<const Slice> slices;
  TensorView q, k, v, dout;
  TensorView lse, delta;  ///< fp32 [batch, row, head, 1]; delta = rowsum(dout ∘ out)
  TensorView dq, dk, dv;  ///< fp32
  HeadMap heads;
  double scale = 1;
  bool init_dq = true, init_dkv = true;
  const Slice* device_slices = nullptr;  ///< as in ForwardArgs
  bool deterministic = false;            ///< the problem's: the same bits in every call
  TensorView out{};  ///< the final output of the whole rows, in delta's place for kernels that read it (reads_out)
};

/// What a kernel works with: its threads and its scratch (workspace_bytes of it, 64-byte aligned, any contents). On a
/// CUDA device a call only enqueues work on `stream`: no host synchronisation, nothing allocated, so that it can be
/// captured into a graph once an earlier call of the same shape has been made.
struct KernelContext {
  ThreadPool& threads;
  std::span<std::byte> workspace;
  Device device{};
  Stream stream{};
  std::int64_t scratch = 0;  ///< as the CallShape's that the workspace was planned for
};

/// What one call will look like, for planning: extents of its views and its slices; no memory.
struct CallShape {
  bool backward = false;
  std::span<const Slice> slices;
  std::int64_t batch = 1, rows_q = 0, rows_k = 0;
  int heads_q = 1, heads_kv = 1;
  bool init = true, last = true;               ///< forward: as in ForwardArgs
  bool init_dq = true, init_dkv = true;        ///< backward: as in BackwardArgs
  bool narrow_dq = false, narrow_dkv = false;  ///< backward: these have the problem's dtype, not fp32
  int threads = 1;
  Device device{};
  std::int64_t scratch = 0;  ///< PlanOptions::kernel_scratch
};

/// The shape of a problem in one call; `slices` must outlive it.
[[nodiscard]] inline CallShape whole_call(const Problem& problem, std::span<const Slice> slices, bool backward,
                                          int threads = 1) {
  return {.backward = backward,
          .slices = slices,
          .batch = problem.batches(),
          .rows_q = problem.s_q,
          .rows_k = problem.s_k,
          .heads_q = problem.h_q,
          .heads_kv = problem.h_kv,
          .threads = threads};
}

/// What a kernel can do beside computing; nobody asks its name.
struct KernelCapabilities {
  bool accumulates = true;    ///< resumes and leaves fp32 state in place; else 16-bit partials that the executor merges
  bool slices = true;         ///< any slice list in one call; else dense or ragged groups
  bool row_max = true;        ///< max_logit
  bool deterministic = true;  ///< same bits whatever the threads and timing
  bool automatic = true;      ///< may be chosen by auto
  bool reads_out = false;     ///< backward computes delta itself, from out
  bool confines_nan = true;   ///< a NaN in a key row reaches only rows that see it; else what shares a tile with it
  bool confines_documents = true;  ///< a NaN reaches no row of slices without it; else those in the same tile
  bool narrow_gradients = false;  ///< writes gradients in the problem's dtype too, where a call makes the whole of them
  bool takes_scratch = false;     ///< backward keeps to PlanOptions::kernel_scratch
  int alignment = 1;              ///< bytes that addresses and strides of q, k, v, out and dout are multiples of
  Device::Kind device = Device::Kind::cpu;
};

/// A kernel is stateless and may be called by several threads at once.
class Kernel {
 public:
  virtual ~Kernel() = default;
  [[nodiscard]] virtual std::string name() const = 0;
  [[nodiscard]] virtual KernelCapabilities capabilities() const = 0;
  /// One line for `rotunda info`, such as "AVX2, 8 lanes".
  [[nodiscard]] virtual std::string description() const = 0;
  /// What this machine lacks for it, such as a library, or nothing.
  [[nodiscard]] virtual std::optional<std::string> missing() const { return std::nullopt; }
  /// Why it can't serve the problem on a device of its kind, or nothing. Host only, cheap.
  [[nodiscard]] virtual std::optional<std::string> refuse(const Problem& problem, const Device& device) const = 0;
  /// Why it can't serve one call of a program, or nothing: asked when a plan is made, before any work.
  [[nodiscard]] virtual std::optional<std::string> refuse_call(const Problem&, const CallShape&) const {
    return std::nullopt;
  }
  /// Scratch of a call.
  [[nodiscard]] virtual std::int64_t workspace_bytes(const Problem& problem, const CallShape& call) const = 0;
  virtual void forward(const ForwardArgs& args, const KernelContext& context) const = 0;
  virtual void backward(const BackwardArgs& args, const KernelContext& context) const = 0;
};

/// All kernels of this build, in order of preference. registry.cpp, here and in cuda/, is the place to add one.
[[nodiscard]] const std::vector<const Kernel*>& kernels();
/// nullptr where there is none of that name for that kind of device.
[[nodiscard]] const Kernel* find_kernel(const std::string& name, Device::Kind kind = Device::Kind::cpu);
/// Those of a build with CUDA, in order of preference; none otherwise.
[[nodiscard]] std::vector<const Kernel*> cuda_kernels();

/// A kernel that other builds have.
struct AbsentKernel {
  std::string name;
  std::string needs;  ///< completes "kernel NAME is …"
};
[[nodiscard]] std::vector<AbsentKernel> absent_kernels();

}  // namespace rotunda
