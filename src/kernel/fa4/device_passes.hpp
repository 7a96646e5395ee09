// What runs around the exported kernels, in stream order on the current device.
#pragma once

#include <cstdint>
#include <span>

#include "kernel/fa4/exported.hpp"
#include "kernel/fa4/tables.hpp"
#include "rotunda/device.hpp"
#include "rotunda/tensor.hpp"

namespace rotunda::fa4 {

/// Writes the tables, the owners of blocks included. Values travel as kernel parameters: a capture keeps them.
void write(const Tables& tables, std::int32_t* to, Stream stream);
void write(std::span<const std::int32_t> values, std::int32_t* to, Stream stream);

/// A segment table on the device.
struct SegmentList {
  const std::int32_t* table = nullptr;
  int count = 0;
  std::int64_t rows = 0;  ///< of the sums, whole tiles of each segment
};

/// Row statistics [batch, row, head, 1] in the order of sums, [head, sums' row]: lse in units of log 2; 0 where a row
/// sees nothing or a segment ends.
void gather_statistics(const TensorView& lse, const TensorView& delta, const SegmentList& segments, float* lse_log2,
                       float* gathered_delta, Stream stream);

/// Where to put sums, and how.
struct SumTarget {
  TensorView view;  ///< fp32, or 16 bits where nothing is added to
  float scale = 1;
  bool add = false;
};

/// Sums [head, tile, ...] to rows of a view: target = scale * sums, or += with add. Segments whose rows of sums begin
/// at `end` or later have none: zeros. `width` is that of the tiles.
void place_sums(const float* sums, const SumTile& tile, int width, const SegmentList& segments, std::int64_t end,
                const SumTarget& target, Stream stream);

}  // namespace rotunda::fa4
