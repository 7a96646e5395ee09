// Parts: which of a rank's own rows have to do with other ranks, and which can be finished at once.
#pragma once

#include <vector>

#include "schedule/segments.hpp"

namespace rotunda {

/// Rows of queries and rows of keys of one rank, and what is visible between them.
struct Part {
  RowRange q, k;
  std::vector<Slice> slices;  ///< in rows of q and of k: both count from 0
};

/// A rank's own rows.
struct Parts {
  Part open;                 ///< rows that other ranks' keys or queries touch, and all that these are linked to
  std::vector<Part> closed;  ///< the rest: no slice links a part to any other row, so one call has all of its results
};

/// Splits a rank's rows at the ends of what is open: query rows that see other ranks' keys, key rows that other ranks'
/// queries see (sorted), and the slices linked to them. Slices open or close as wholes, and regions are contiguous, so
/// there is a closed part before the open one, behind it, or both; each has slices. Where nothing is closed or nothing
/// open, all rows are.
[[nodiscard]] Parts split_parts(Part own, const std::vector<RowRange>& open_q, const std::vector<RowRange>& open_k);

/// Parts of the same rows q and k as one. Rows of none of them are in it, with no slices.
[[nodiscard]] Part joined(const std::vector<Part>& parts, RowRange q, RowRange k);

}  // namespace rotunda
