// What normalize fills in and to_text leaves out.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

namespace rotunda {

[[nodiscard]] inline double default_scale(int d) {
  return 1.0 / std::sqrt(static_cast<double>(d));
}

/// Kernels scale in fp32.
[[nodiscard]] inline bool is_scale(double scale) {
  return scale > 0 && scale <= static_cast<double>(std::numeric_limits<float>::max());
}

/// The lengths between offsets: [0, 3, 10] gives [3, 7].
[[nodiscard]] inline std::vector<std::int64_t> full_lengths(const std::vector<std::int64_t>& offsets) {
  std::vector<std::int64_t> lengths;
  for (std::size_t i = 1; i < offsets.size(); ++i) lengths.push_back(offsets[i] - offsets[i - 1]);
  return lengths;
}

}  // namespace rotunda
