// Whole problems in a CUDA device's memory: values, shards and comparisons there, so that full sizes stay quick.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "rotunda/attention.hpp"
#include "rotunda/device.hpp"
#include "rotunda/plan.hpp"
#include "rotunda/problem.hpp"

namespace rotunda::testing {

/// How a tensor compares to the exact one.
struct Difference {
  double most = 0;             ///< largest absolute difference of finite numbers
  std::int64_t misplaced = 0;  ///< infinities that differ, values not finite where the exact one is
};

/// Of two views of one shape in device memory, any dtypes. Waits for the device.
[[nodiscard]] Difference difference(const TensorView& got, const TensorView& exact);
/// Elements whose bits differ, of two views of one shape and dtype.
[[nodiscard]] std::int64_t differing_bits_on_device(const TensorView& a, const TensorView& b);
/// nearly_normal (support/random_tensors.hpp) of `stream` at every element of a view in device memory.
void fill_nearly_normal_on_device(const TensorView& view, std::uint64_t seed, std::uint64_t stream);

/// Tensors of a problem in the memory of one device. Inputs hold values from the seed, NaN in padding; outputs NaN.
class DeviceTensors {
 public:
  /// rows_q, rows_k: of the buffers (the problem's, or one rank's).
  DeviceTensors(const Problem& problem, std::int64_t rows_q, std::int64_t rows_k, const Device& device);

  [[nodiscard]] Tensors& views() { return views_; }
  [[nodiscard]] const Tensors& views() const { return views_; }
  void fill_inputs(const Problem& problem, std::uint64_t seed);
  void poison_outputs();

 private:
  TensorView allocate(DType dtype, Layout layout, std::int64_t b, std::int64_t s, std::int64_t h, std::int64_t d);

  Device device_;
  std::vector<DeviceMemory> memory_;
  std::vector<std::size_t> outputs_;
  Tensors views_;
};

/// Rows between a whole tensor and a rank's, both in device memory, in the order of the default stream.
void scatter_on_device(const TokenMap& map, int rank, const TensorView& whole, const TensorView& local, int device);
void gather_on_device(const TokenMap& map, int rank, const TensorView& local, const TensorView& whole, int device);

/// A host copy of a view that is dense in its memory (rows [0, rows) of every batch entry and some heads are read).
[[nodiscard]] std::vector<std::byte> download(const TensorView& view, TensorView& on_host);

}  // namespace rotunda::testing
