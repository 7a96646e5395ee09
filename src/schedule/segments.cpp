#include "schedule/segments.hpp"

#include <algorithm>
#include <tuple>

#include "problem/band.hpp"

namespace rotunda {
namespace {

/// Indices [first, first + count) of a segment whose tokens lie in [begin, end).
struct Overlap {
  std::int64_t first = 0, count = 0;
};

Overlap overlap(const Segment& segment, std::int64_t stride, std::int64_t begin, std::int64_t end) {
  const auto index = [&](std::int64_t token) {  // of the first token at or after `token`
    return std::clamp<std::int64_t>(floor_div(token - segment.token + stride - 1, stride), 0, segment.len);
  };
  const std::int64_t first = index(begin);
  return {first, index(end) - first};
}

/// Calls body(segment, overlap) for the segments with tokens in [begin, end).
template <class Body>
void for_overlaps(const Segments& segments, std::int64_t begin, std::int64_t end, Body&& body) {
  auto it = segments.list.begin();
  if (segments.stride == 1) {
    it = std::partition_point(it, segments.list.end(),
                              [&](const Segment& segment) { return segment.token + segment.len <= begin; });
  }
  for (; it != segments.list.end(); ++it) {
    if (segments.stride == 1 && it->token >= end) return;
    const Overlap found = overlap(*it, segments.stride, begin, end);
    if (found.count > 0) body(*it, found);
  }
}

/// Sorted, overlapping and adjacent ranges joined.
std::vector<RowRange> merged(std::vector<RowRange> ranges) {
  std::sort(ranges.begin(), ranges.end(), [](const RowRange& a, const RowRange& b) { return a.begin < b.begin; });
  std::vector<RowRange> result;
  for (const RowRange& range : ranges) {
    if (!result.empty() && range.begin <= result.back().begin + result.back().len) {
      const std::int64_t end = std::max(result.back().begin + result.back().len, range.begin + range.len);
      result.back().len = end - result.back().begin;
    } else {
      result.push_back(range);
    }
  }
  return result;
}

/// The part of a slice that meets a query segment and a key segment, in their buffers' rows.
Slice local_slice(const Slice& slice, const Segment& q, Overlap rows, const Segment& k, Overlap columns,
                  std::int64_t stride) {
  Slice result = slice;
  result.q_begin = q.row + rows.first;
  result.q_len = rows.count;
  result.k_begin = k.row + columns.first;
  result.k_len = columns.count;
  result.q_pos = slice.q_pos + (q.token + rows.first * stride - slice.q_begin);
  result.k_pos = slice.k_pos + (k.token + columns.first * stride - slice.k_begin);
  if (stride == 1) return result;
  const std::int64_t distance = result.k_pos - result.q_pos;
  if (slice.left != kInfinity) result.left = floor_div(slice.left + distance, stride);
  if (slice.right != kInfinity) result.right = floor_div(slice.right - distance, stride);
  result.q_pos = result.k_pos = 0;
  return result;
}

bool continues_in_keys(const Slice& a, const Slice& b) {
  return a.batch == b.batch && a.q_begin == b.q_begin && a.q_len == b.q_len && a.q_pos == b.q_pos && a.left == b.left &&
         a.right == b.right && a.k_begin + a.k_len == b.k_begin && a.k_pos + a.k_len == b.k_pos;
}

bool continues_in_queries(const Slice& a, const Slice& b) {
  return a.batch == b.batch && a.k_begin == b.k_begin && a.k_len == b.k_len && a.k_pos == b.k_pos && a.left == b.left &&
         a.right == b.right && a.q_begin + a.q_len == b.q_begin && a.q_pos + a.q_len == b.q_pos;
}

/// Joins neighbours in key order, then in query order.
std::vector<Slice> joined(std::vector<Slice> slices) {
  const auto join = [](std::vector<Slice>& list, auto order, auto continues, auto grow) {
    std::sort(list.begin(), list.end(), [&](const Slice& a, const Slice& b) { return order(a) < order(b); });
    std::vector<Slice> result;
    for (const Slice& slice : list) {
      if (!result.empty() && continues(result.back(), slice)) {
        grow(result.back(), slice);
      } else {
        result.push_back(slice);
      }
    }
    list = std::move(result);
  };
  join(
      slices, [](const Slice& s) { return std::tuple(s.batch, s.q_begin, s.q_len, s.k_begin, s.q_pos, s.left); },
      continues_in_keys, [](Slice& a, const Slice& b) { a.k_len += b.k_len; });
  join(
      slices, [](const Slice& s) { return std::tuple(s.batch, s.k_begin, s.k_len, s.q_begin, s.k_pos, s.left); },
      continues_in_queries, [](Slice& a, const Slice& b) { a.q_len += b.q_len; });
  return slices;
}

}  // namespace

Segments local_segments(const TokenMap& map, int rank) {
  Segments result{map.stride(), {}};
  std::int64_t row = 0;
  for (const Run& run : map.runs(rank)) {
    result.list.push_back({row, run.len, run.token, rank, row});
    row += run.len;
  }
  return result;
}

Segments gathered_segments(const TokenMap& map, std::span<const int> owners,
                           std::span<const std::vector<RowRange>> rows) {
  Segments result{map.stride(), {}};
  for (std::size_t i = 0; i < owners.size(); ++i) {
    const Segments local = local_segments(map, owners[i]);
    for (const RowRange& range : rows[i]) {
      const std::int64_t range_end = range.begin + range.len;
      auto it = std::partition_point(local.list.begin(), local.list.end(),
                                     [&](const Segment& segment) { return segment.row + segment.len <= range.begin; });
      for (; it != local.list.end() && it->row < range_end; ++it) {
        const std::int64_t first = std::max(range.begin, it->row);
        const std::int64_t token = it->token + (first - it->row) * map.stride();
        result.list.push_back({0, std::min(range_end, it->row + it->len) - first, token, owners[i], first});
      }
    }
  }
  if (map.stride() == 1) {
    std::sort(result.list.begin(), result.list.end(),
              [](const Segment& a, const Segment& b) { return a.token < b.token; });
  }
  std::int64_t row = 0;
  for (Segment& segment : result.list) {
    segment.row = row;
    row += segment.len;
  }
  return result;
}

std::vector<Slice> intersect(std::span<const Slice> slices, const Segments& q, const Segments& k) {
  std::vector<Slice> pieces;
  for (const Slice& slice : slices) {
    for_overlaps(q, slice.q_begin, slice.q_begin + slice.q_len, [&](const Segment& q_segment, Overlap rows) {
      for_overlaps(k, slice.k_begin, slice.k_begin + slice.k_len, [&](const Segment& k_segment, Overlap columns) {
        const Slice piece = local_slice(slice, q_segment, rows, k_segment, columns, q.stride);
        if (!is_empty(piece)) pieces.push_back(piece);
      });
    });
  }
  std::vector<Slice> result = joined(std::move(pieces));
  for (Slice& slice : result) slice = trim(slice);
  std::sort(result.begin(), result.end(), [](const Slice& a, const Slice& b) {
    return std::tuple(a.batch, a.q_begin, a.k_begin) < std::tuple(b.batch, b.q_begin, b.k_begin);
  });
  return result;
}

std::vector<RowRange> visible_key_rows(std::span<const Slice> slices, const Segments& q, const TokenMap& k_map,
                                       int owner) {
  std::vector<RowRange> ranges;
  for (const Slice& slice : intersect(slices, q, local_segments(k_map, owner))) {
    ranges.push_back({slice.k_begin, slice.k_len});
  }
  return merged(std::move(ranges));
}

std::vector<RowRange> seeing_query_rows(std::span<const Slice> slices, const TokenMap& q_map, int owner) {
  const Segments local = local_segments(q_map, owner);
  std::vector<RowRange> ranges;
  for (const Slice& slice : slices) {
    const Slice seeing = trim(slice);
    for_overlaps(local, seeing.q_begin, seeing.q_begin + seeing.q_len, [&](const Segment& segment, Overlap rows) {
      ranges.push_back({segment.row + rows.first, rows.count});
    });
  }
  return merged(std::move(ranges));
}

std::vector<RowSpan> spans_in_rows(std::span<const RowSpan> spans, const Segments& segments) {
  std::vector<RowSpan> result;
  for (const RowSpan& span : spans) {
    for_overlaps(segments, span.begin, span.begin + span.len, [&](const Segment& segment, Overlap rows) {
      const std::int64_t begin = segment.row + rows.first;
      if (!result.empty() && result.back().batch == span.batch && result.back().begin + result.back().len == begin) {
        result.back().len += rows.count;
      } else {
        result.push_back({span.batch, begin, rows.count});
      }
    });
  }
  return result;
}

}  // namespace rotunda
