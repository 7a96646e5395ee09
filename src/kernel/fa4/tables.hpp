// What a launch reads of its pieces: tables of int32, written to the device's memory in stream order.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "kernel/fa4/fold.hpp"
#include "kernel/fa4/pieces.hpp"
#include "kernel/kernel.hpp"

namespace rotunda::fa4 {

// Flags of a forward launch (tools/fa4/kernels.py has the same).
inline constexpr int kResumes = 1;      ///< the state holds something: read it
inline constexpr int kLeavesState = 2;  ///< write the state, not the output

/// What the pieces of a launch have in common.
struct LaunchFrame {
  Fold q, k;
  HeadMap heads;
  int flags = 0;
  Side blocks_of = Side::query;  ///< the side whose tiles are blocks
  int tile = 1;                  ///< its rows
};

/// The tables of one launch, one after the other (tools/fa4/slices.py says what is in them), but for the owners of
/// blocks, which follow them and are written on the device.
struct Tables {
  std::vector<std::int32_t> values;
  std::int32_t pieces = 0, blocks = 0;
  int tile = 1;

  /// Where they lie once written to `at`.
  [[nodiscard]] LaunchTables at(std::int32_t* at) const;
};

[[nodiscard]] Tables make_tables(const Launch& launch, const LaunchFrame& frame);

/// The launch as one slice of each of `batches` entries without a left bound, if it is that.
[[nodiscard]] std::optional<OneSlice> as_one_slice(const Launch& launch, const LaunchFrame& frame,
                                                   std::int64_t batches);

/// Bytes of the tables of such a launch.
[[nodiscard]] std::int64_t table_bytes(const Launch& launch, Side blocks_of, int tile);

/// Segments as the passes over sums read them: batch, begin, len, sum of each; then `sum` = rows for an end.
[[nodiscard]] std::vector<std::int32_t> segment_table(std::span<const Segment> segments, std::int64_t rows);

}  // namespace rotunda::fa4
