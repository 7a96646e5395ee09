// Slice lists as components: query rows and key rows that slices connect, a packed document for example.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "rotunda/problem.hpp"

namespace rotunda::sm90::wide {

/// No other component of the call has any of these rows, so that tiles which start at a component's first rows never
/// mix two of them: what one document holds can't reach another.
struct Component {
  std::int64_t batch = 0;
  std::int64_t q_begin = 0, q_len = 0;
  std::int64_t k_begin = 0, k_len = 0;
  std::vector<Slice> slices;  ///< trimmed; rows counted from q_begin and k_begin
};

/// In order of batch entry and query row. Slices without a visible pair are left out, and with them their rows.
[[nodiscard]] std::vector<Component> components_of(std::span<const Slice> slices);

/// Rows [0, rows) of `batches` batch entries that no component has among its rows of a side.
[[nodiscard]] std::vector<RowSpan> rows_without(const std::vector<Component>& components, std::int64_t batches,
                                                std::int64_t rows, Side side);

}  // namespace rotunda::sm90::wide
