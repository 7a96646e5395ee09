// What a kernel call is made of. The same sequence of operations is performed on a device or, when a plan is made, only
// measured.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "kernel/cudnn/layout.hpp"
#include "kernel/elementwise/elementwise.hpp"
#include "kernel/kernel.hpp"

namespace rotunda::cudnn {

/// Scratch handed out from the front. Without memory it only counts.
class Scratch {
 public:
  explicit Scratch(std::span<std::byte> memory = {});

  /// 256-byte aligned, any contents. @throws Error internal where there is too little
  [[nodiscard]] std::byte* take(std::int64_t bytes);
  /// A dense view in the order of a layout.
  [[nodiscard]] TensorView take(DType dtype, Layout layout, const std::array<std::int64_t, 4>& shape);
  /// Bytes that memory must have for what was taken so far at once.
  [[nodiscard]] std::int64_t bytes_needed() const;

  /// What is taken during a frame is free again after it.
  class Frame {
   public:
    explicit Frame(Scratch& scratch) : scratch_(scratch), used_(scratch.used_) {}
    ~Frame() { scratch_.used_ = used_; }
    Frame(const Frame&) = delete;
    Frame& operator=(const Frame&) = delete;

   private:
    Scratch& scratch_;
    std::int64_t used_;
  };

 private:
  bool measures_;
  std::byte* base_ = nullptr;
  std::int64_t size_ = 0, used_ = 0, peak_ = 0;
};

class Operations {
 public:
  explicit Operations(Scratch scratch_memory) : scratch(scratch_memory) {}
  virtual ~Operations() = default;

  virtual void fill(const TensorView& to, float value) = 0;
  virtual void convert(const TensorView& from, const TensorView& to) = 0;
  virtual void copy(const TensorView& from, const TensorView& to) = 0;
  /// to += from: 16 bits to fp32.
  virtual void add(const TensorView& from, const TensorView& to) = 0;
  /// Zeroes dense scratch.
  virtual void zero(const TensorView& scratch_view) = 0;
  /// Infinities in dense fp32 scratch become 0.
  virtual void clear_infinities(const TensorView& scratch_view) = 0;
  /// Adds a result over some keys to the state (kernel/elementwise/cuda/merge.hpp).
  virtual void merge(const TensorView& partial_out, const TensorView& partial_lse, const RowState& state,
                     const TensorView& out, bool init, bool last) = 0;
  /// Runs cuDNN.
  virtual void attend(const GraphCall& call) = 0;

  Scratch scratch;
};

/// Enqueues on the context's stream, with its workspace.
[[nodiscard]] std::unique_ptr<Operations> device_operations(const KernelContext& context);

/// Performs nothing: asks cuDNN whether it serves the graphs and counts scratch.
class Measurement final : public Operations {
 public:
  /// What the library's own scratch counts for: the plans' workspace, which takes building them, or nothing.
  enum class Workspace { counted, left_out };

  /// With a saved device cuDNN is asked about that one; its workspace is left out.
  explicit Measurement(Workspace workspace, const SavedDevice* saved = nullptr)
      : Operations(Scratch{}), workspace_(workspace), saved_(saved) {}

  void fill(const TensorView&, float) override {}
  void convert(const TensorView&, const TensorView&) override {}
  void copy(const TensorView&, const TensorView&) override {}
  void add(const TensorView&, const TensorView&) override {}
  void zero(const TensorView&) override {}
  void clear_infinities(const TensorView&) override {}
  void merge(const TensorView&, const TensorView&, const RowState&, const TensorView&, bool, bool) override {}
  void attend(const GraphCall& call) override;

  std::optional<std::string> refusal;  ///< the first of cuDNN's

 private:
  Workspace workspace_;
  const SavedDevice* saved_;
};

}  // namespace rotunda::cudnn
