// cuDNN's attention graphs: described, built once, executed.
//
// graph.cpp is the only file that includes the frontend's headers: they take a minute to compile.
#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "kernel/grouping.hpp"
#include "rotunda/device.hpp"
#include "rotunda/tensor.hpp"

namespace rotunda::cudnn {

/// Tensors of a graph. Forward: q, k, v give out, lse. Backward: all but the last three are read.
enum class Operand { q, k, v, out, lse, dout, dq, dk, dv };
inline constexpr std::size_t kOperands = 9;

/// A tensor as cuDNN sees it: [batch, head, row, dim].
struct TensorKey {
  std::array<std::int64_t, 4> dim{}, stride{};
  int offsets = -1;  ///< ragged: which array holds where each sequence begins

  auto operator<=>(const TensorKey&) const = default;
};

/// All that a graph depends on: two calls with equal keys run the same plan.
struct GraphKey {
  int device = 0;
  bool backward = false;
  DType dtype = DType::bf16;
  CornerMask mask;
  double scale = 1;
  bool deterministic = false;             ///< backward
  bool lengths = false;                   ///< sequences may be shorter than dim says; their lengths are in arrays
  int offset_arrays = 0;                  ///< ragged: how many
  std::int64_t total_q = 0, total_k = 0;  ///< ragged: rows of the results, gaps included
  std::array<TensorKey, kOperands> tensors;

  auto operator<=>(const GraphKey&) const = default;
  [[nodiscard]] TensorKey& operator[](Operand operand) { return tensors[static_cast<std::size_t>(operand)]; }
  [[nodiscard]] const TensorKey& operator[](Operand operand) const {
    return tensors[static_cast<std::size_t>(operand)];
  }
};

/// "backward bf16, mask top-left right 0, q [1, 16, 4096, 128] …" for messages and logs.
[[nodiscard]] std::string to_text(const GraphKey& key);

/// Where the tensors of an execution lie. Arrays are int32 in the device's memory.
struct Bindings {
  std::array<void*, kOperands> tensors{};
  int* lengths_q = nullptr;
  int* lengths_k = nullptr;
  std::vector<int*> offsets;
};

/// A plan that cuDNN has built. Any number of threads may run it at once.
class Plan {
 public:
  virtual ~Plan() = default;
  [[nodiscard]] virtual std::int64_t workspace_bytes() const = 0;
  /// Enqueues on `stream`, of the key's device. @throws Error device
  virtual void execute(const Bindings& bindings, std::byte* workspace, Stream stream) const = 0;
};

/// The plan of a key, built when first asked for and kept for the process: a captured CUDA graph may hold on to it.
/// @throws Error unsupported with cuDNN's reason
[[nodiscard]] const Plan& plan(const GraphKey& key);

/// cuDNN's reason not to serve a key, or nothing. Takes milliseconds: the plan is not built.
[[nodiscard]] std::optional<std::string> refuse(const GraphKey& key);

/// A device that need not be there: cuDNN's JSON description of one, and its compute capability times 10.
struct SavedDevice {
  std::string properties;
  int sm_version = 90;
};

/// As above, for a saved device; nothing is kept.
[[nodiscard]] std::optional<std::string> refuse(const GraphKey& key, const SavedDevice& device);

}  // namespace rotunda::cudnn
