// Inputs of a command: read from a file and checked against the problem, or random.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "cli/safetensors.hpp"
#include "cli/tensors.hpp"

namespace rotunda::cli {

/// Whole tensors in token order, and the problem that they belong to.
struct Inputs {
  Problem problem;           ///< as computed: a file's rows beyond the last offset are one more, invisible sequence
  std::string problem_text;  ///< as asked
  TensorStore tensors;
  std::unique_ptr<SafetensorsFile> file;  ///< keeps mapped memory alive
};

/// Reads the inputs of `path`. The problem is `given`, or else the file's metadata `problem`. Tensors are views of the
/// mapped file where they are aligned. Unknown tensors are ignored. @throws Error bad_input
[[nodiscard]] Inputs read_inputs(const std::string& path, const std::optional<Problem>& given);

/// Nearly normal values, the same on every machine: (the sum of the eight bytes of z - 1020) / 209 with
/// z = splitmix64(splitmix64(16·seed + t) + index), t = 0, 1, 2, 3 for q, k, v, dout, index = position in [row, head,
/// dim] (row = batch·s + position whatever the layout), rounded to the dtype; sink (t = 4): twice that, by head.
[[nodiscard]] Inputs random_inputs(const Problem& problem, std::uint64_t seed);

/// The problem for buffers with more rows than its last offset (thd): the tail becomes one more sequence with no
/// visible token. @throws Error bad_input where there are fewer rows
[[nodiscard]] Problem with_tail(Problem problem, RowCounts rows);

}  // namespace rotunda::cli
