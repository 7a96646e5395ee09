#include "schedule/parts.hpp"

#include <algorithm>
#include <utility>

namespace rotunda {
namespace {

/// Rows [begin, end) of one side that are open.
class OpenRows {
 public:
  explicit OpenRows(const std::vector<RowRange>& ranges) {
    for (const RowRange& range : ranges) take(range.begin, range.len);
  }
  [[nodiscard]] bool empty() const { return begin >= end; }
  [[nodiscard]] bool meet(std::int64_t row, std::int64_t len) const { return row < end && begin < row + len; }
  void take(std::int64_t row, std::int64_t len) {
    if (len == 0) return;
    begin = empty() ? row : std::min(begin, row);
    end = std::max(end, row + len);
  }
  [[nodiscard]] RowRange before() const { return {0, begin}; }
  [[nodiscard]] RowRange range() const { return {begin, end - begin}; }
  [[nodiscard]] RowRange behind(std::int64_t rows) const { return {end, rows - end}; }

  std::int64_t begin = 0, end = 0;
};

/// Opens what is linked to open rows, until nothing more is. Slices are sorted by query row, so a chain of links is
/// mostly followed in one pass over them, up or down.
void open_linked(const std::vector<Slice>& slices, OpenRows& q, OpenRows& k) {
  const auto open = [&](const Slice& slice) {
    if (!q.meet(slice.q_begin, slice.q_len) && !k.meet(slice.k_begin, slice.k_len)) return;
    q.take(slice.q_begin, slice.q_len);
    k.take(slice.k_begin, slice.k_len);
  };
  for (bool grown = true; grown;) {
    const std::pair before(q.range().len, k.range().len);
    std::for_each(slices.begin(), slices.end(), open);
    std::for_each(slices.rbegin(), slices.rend(), open);
    grown = before != std::pair(q.range().len, k.range().len);
  }
}

}  // namespace

Parts split_parts(Part own, const std::vector<RowRange>& open_q, const std::vector<RowRange>& open_k) {
  OpenRows q(open_q), k(open_k);
  open_linked(own.slices, q, k);
  if (q.empty() || k.empty()) return {std::move(own), {}};
  bool low = false, high = false;
  for (const Slice& slice : own.slices) {
    const bool is_low = slice.q_begin < q.begin;
    const bool is_high = slice.q_begin >= q.end;
    // A slice from rows before the open ones to rows behind them: no two regions hold all that is closed.
    if (is_low != (slice.k_begin < k.begin) || is_high != (slice.k_begin >= k.end)) return {std::move(own), {}};
    low |= is_low;
    high |= is_high;
  }
  // Rows that see nothing and that nobody sees are no part of their own.
  if (!low) q.begin = k.begin = 0;
  if (!high) {
    q.end = own.q.len;
    k.end = own.k.len;
  }
  if (!low && !high) return {std::move(own), {}};
  Part before{q.before(), k.before(), {}};
  Part behind{q.behind(own.q.len), k.behind(own.k.len), {}};
  Parts parts{{q.range(), k.range(), {}}, {}};
  for (Slice slice : own.slices) {
    Part& part = slice.q_begin < q.begin ? before : slice.q_begin < q.end ? parts.open : behind;
    slice.q_begin -= part.q.begin;
    slice.k_begin -= part.k.begin;
    part.slices.push_back(slice);
  }
  if (low) parts.closed.push_back(std::move(before));
  if (high) parts.closed.push_back(std::move(behind));
  return parts;
}

Part joined(const std::vector<Part>& parts, RowRange q, RowRange k) {
  Part result{q, k, {}};
  for (const Part& part : parts) {
    for (Slice slice : part.slices) {
      slice.q_begin += part.q.begin - q.begin;
      slice.k_begin += part.k.begin - k.begin;
      result.slices.push_back(slice);
    }
  }
  return result;
}

}  // namespace rotunda
