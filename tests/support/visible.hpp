// What a row sees, pair by pair, in the words of docs/problem.md: the yardstick for mask_slices. Shares nothing with
// it.
#pragma once

#include <cstdint>

#include "rotunda/problem.hpp"

namespace rotunda::testing {

/// Where the rows of entry `entry` lie in their buffer: a batch entry for dense layouts, a sequence for thd (a problem
/// with slices has one entry in thd, the whole buffer).
struct EntryRows {
  std::int64_t batch = 0;
  std::int64_t q_begin = 0, q_rows = 0, q_visible = 0;  ///< physical rows, and how many of them are no padding
  std::int64_t k_begin = 0, k_rows = 0, k_visible = 0;
};

/// Of a normalized problem, entry in [0, b).
[[nodiscard]] inline EntryRows entry_rows(const Problem& p, std::int64_t entry) {
  const auto e = static_cast<std::size_t>(entry);
  EntryRows rows;
  if (p.layout == Layout::thd) {
    rows.q_begin = p.cu_q.at(e);
    rows.q_rows = p.cu_q.at(e + 1) - p.cu_q.at(e);
    rows.k_begin = p.cu_k.at(e);
    rows.k_rows = p.cu_k.at(e + 1) - p.cu_k.at(e);
    rows.q_visible = p.used_q.empty() ? rows.q_rows : p.used_q.at(e);
    rows.k_visible = p.used_k.empty() ? rows.k_rows : p.used_k.at(e);
  } else {
    rows.batch = entry;
    rows.q_rows = p.s_q;
    rows.k_rows = p.s_k;
    rows.q_visible = p.lens_q.empty() ? p.s_q : p.lens_q.at(e);
    rows.k_visible = p.lens_k.empty() ? p.s_k : p.lens_k.at(e);
  }
  return rows;
}

/// A slice of the problem's own list has row i and key j of its batch entry in sight.
[[nodiscard]] inline bool slice_sees(const Slice& s, std::int64_t i, std::int64_t j) {
  if (i < s.q_begin || i - s.q_begin >= s.q_len || j < s.k_begin || j - s.k_begin >= s.k_len) return false;
  __extension__ using Wide = __int128;  // positions and edges may be any 64-bit numbers
  const Wide distance = (Wide{s.k_pos} + (j - s.k_begin)) - (Wide{s.q_pos} + (i - s.q_begin));
  const bool left = s.left == kInfinity || distance >= -Wide{s.left};
  const bool right = s.right == kInfinity || distance <= Wide{s.right};
  return left && right;
}

/// Whether query i of an entry sees key j of it, both counted from the entry's first physical row; padding sees nothing
/// and is not seen.
[[nodiscard]] inline bool visible(const Problem& p, std::int64_t entry, std::int64_t i, std::int64_t j) {
  if (p.slices) {
    for (const Slice& s : *p.slices) {
      if (s.batch == (p.layout == Layout::thd ? 0 : entry) && slice_sees(s, i, j)) return true;
    }
    return false;
  }
  const EntryRows rows = entry_rows(p, entry);
  if (i >= rows.q_visible || j >= rows.k_visible) return false;
  const std::int64_t position = p.align == Align::bottom_right ? i + (rows.k_visible - rows.q_visible) : i;
  const bool mask = p.mask == Mask::none || j <= position;
  const bool window_left = p.window.left == kInfinity || position - j <= p.window.left;
  const bool window_right = p.window.right == kInfinity || j - position <= p.window.right;
  const bool prefix = j < p.prefix;
  bool chunk = true;
  if (p.chunk != 0) {
    const auto chunk_of = [&](std::int64_t x) { return x >= 0 ? x / p.chunk : -((-x - 1) / p.chunk) - 1; };
    chunk = chunk_of(j) == chunk_of(position);
  }
  return ((mask && window_left && window_right) || prefix) && chunk;
}

/// Query i of an entry exists: it is no padding. (It may see nothing all the same.)
[[nodiscard]] inline bool is_real_row(const Problem& p, std::int64_t entry, std::int64_t i) {
  if (!p.slices) return i < entry_rows(p, entry).q_visible;
  for (const Slice& s : *p.slices) {
    if (s.batch == (p.layout == Layout::thd ? 0 : entry) && i >= s.q_begin && i - s.q_begin < s.q_len) return true;
  }
  return false;
}

}  // namespace rotunda::testing
