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

/// Long lists mostly come in order.
template <class Less>
void sort_if_needed(std::vector<Slice>& list, Less&& less) {
  if (!std::is_sorted(list.begin(), list.end(), less)) std::sort(list.begin(), list.end(), less);
}

/// Joins neighbours in key order, then in query order.
std::vector<Slice> joined(std::vector<Slice> slices) {
  const auto join = [](std::vector<Slice>& list, auto order, auto continues, auto grow) {
    sort_if_needed(list, [&](const Slice& a, const Slice& b) { return order(a) < order(b); });
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

/// Stretches of consecutive rows with consecutive tokens, whoever owns them: to a mask each is one (stride 1).
std::vector<Segment> runs_of(const Segments& segments) {
  std::vector<Segment> runs;
  for (const Segment& segment : segments.list) {
    if (!runs.empty() && runs.back().token + runs.back().len == segment.token &&
        runs.back().row + runs.back().len == segment.row) {
      runs.back().len += segment.len;
    } else {
      runs.push_back(segment);
    }
  }
  return runs;
}

/// Finds runs by token (stride 1). Masks are looked at in ascending order, so the answer is mostly the one before or
/// its neighbour; else it takes a binary search.
class RunSearch {
 public:
  explicit RunSearch(const std::vector<Segment>& runs) : runs_(runs) {}

  /// Index of the first run that ends after `token`.
  std::size_t ending_after(std::int64_t token) {
    if (is_answer(at_, token)) return at_;
    if (at_ < runs_.size() && is_answer(at_ + 1, token)) return ++at_;
    const auto run = std::partition_point(runs_.begin(), runs_.end(),
                                          [&](const Segment& each) { return each.token + each.len <= token; });
    return at_ = static_cast<std::size_t>(run - runs_.begin());
  }
  [[nodiscard]] const std::vector<Segment>& runs() const { return runs_; }

 private:
  [[nodiscard]] bool ends_after(std::size_t run, std::int64_t token) const {
    return run == runs_.size() || runs_[run].token + runs_[run].len > token;
  }
  [[nodiscard]] bool is_answer(std::size_t run, std::int64_t token) const {
    return ends_after(run, token) && (run == 0 || !ends_after(run - 1, token));
  }

  const std::vector<Segment>& runs_;
  std::size_t at_ = 0;
};

/// Tokens [begin, end), counted from a slice's first.
struct TokenRange {
  std::int64_t begin = 0, end = 0;
};

/// Calls body(run, its tokens counted from `begin`) for the runs with tokens in [begin, begin + len).
template <class Body>
void for_run_parts(std::int64_t begin, std::int64_t len, RunSearch& search, Body&& body) {
  const std::vector<Segment>& runs = search.runs();
  auto run = runs.begin() + static_cast<std::ptrdiff_t>(search.ending_after(begin));
  for (; run != runs.end() && run->token < begin + len; ++run) {
    body(*run, TokenRange{std::max<std::int64_t>(0, run->token - begin), std::min(len, run->token + run->len - begin)});
  }
}

/// Keys of a slice that some of its query rows see; the band is the slice's.
TokenRange seen_by(const Slice& slice, const Band& visible, TokenRange rows) {
  if (visible.low > visible.high) return {0, 0};
  return {std::max<std::int64_t>(0, rows.begin + visible.low), std::min(slice.k_len, rows.end + visible.high)};
}

/// Keys of a slice that all of its query rows see.
TokenRange seen_by_all(const Slice& slice, const Band& visible, TokenRange rows) {
  return {std::max<std::int64_t>(0, rows.end - 1 + visible.low), std::min(slice.k_len, rows.begin + visible.high + 1)};
}

/// The pieces of one run of queries: where several runs of keys in a row are seen by all, they are one slice without a
/// band, so that shards of many small runs give a slice or two a run and not one for every pair of runs.
void add_row_pieces(const Slice& slice, const Segment& q_run, TokenRange rows, RunSearch& k_search,
                    std::vector<Slice>& pieces) {
  const std::vector<Segment>& k_runs = k_search.runs();
  const Band visible = band(slice);
  const TokenRange seen = seen_by(slice, visible, rows);
  const TokenRange whole = seen_by_all(slice, visible, rows);
  const Overlap q_part{slice.q_begin + rows.begin - q_run.token, rows.end - rows.begin};
  const auto key = [&](std::int64_t token) { return token - slice.k_begin; };
  auto run = k_runs.begin() + static_cast<std::ptrdiff_t>(k_search.ending_after(slice.k_begin + seen.begin));
  while (run != k_runs.end() && key(run->token) < seen.end) {
    const auto past =
        key(run->token) < whole.begin ? run : std::partition_point(run, k_runs.end(), [&](const Segment& each) {
          return key(each.token + each.len) <= whole.end;
        });
    if (past - run >= 2) {
      Slice piece;
      piece.batch = slice.batch;
      piece.q_begin = piece.q_pos = q_run.row + q_part.first;
      piece.q_len = q_part.count;
      piece.k_begin = piece.k_pos = run->row;
      piece.k_len = (past - 1)->row + (past - 1)->len - run->row;
      pieces.push_back(piece);
      run = past;
      continue;
    }
    const std::int64_t first = std::max<std::int64_t>(0, key(run->token));
    const std::int64_t end = std::min(slice.k_len, key(run->token + run->len));
    const Overlap k_part{slice.k_begin + first - run->token, end - first};
    const Slice piece = local_slice(slice, q_run, q_part, *run, k_part, 1);
    if (!is_empty(piece)) pieces.push_back(piece);
    ++run;
  }
}

void add_pieces(std::span<const Slice> slices, const std::vector<Segment>& q_runs, const std::vector<Segment>& k_runs,
                std::vector<Slice>& pieces) {
  RunSearch q_search(q_runs), k_search(k_runs);
  for (const Slice& slice : slices) {
    for_run_parts(slice.q_begin, slice.q_len, q_search,
                  [&](const Segment& q_run, TokenRange rows) { add_row_pieces(slice, q_run, rows, k_search, pieces); });
  }
}

/// Strided runs overlap in tokens, and there is one a rank: every pair of them is looked at.
void add_strided_pieces(std::span<const Slice> slices, const Segments& q, const Segments& k,
                        std::vector<Slice>& pieces) {
  for (const Slice& slice : slices) {
    for_overlaps(q, slice.q_begin, slice.q_begin + slice.q_len, [&](const Segment& q_segment, Overlap rows) {
      for_overlaps(k, slice.k_begin, slice.k_begin + slice.k_len, [&](const Segment& k_segment, Overlap columns) {
        const Slice piece = local_slice(slice, q_segment, rows, k_segment, columns, q.stride);
        if (!is_empty(piece)) pieces.push_back(piece);
      });
    });
  }
}

/// Adds a range, joined to the last one where they meet.
void append_range(std::vector<RowRange>& ranges, RowRange range) {
  if (!ranges.empty()) {
    RowRange& last = ranges.back();
    if (range.begin >= last.begin && range.begin <= last.begin + last.len) {
      last.len = std::max(last.len, range.begin + range.len - last.begin);
      return;
    }
  }
  ranges.push_back(range);
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

Segments gathered_segments(const TokenMap& map, int first, std::span<const std::vector<RowRange>> rows) {
  Segments result{map.stride(), {}};
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (rows[i].empty()) continue;
    const int owner = first + static_cast<int>(i);
    const Segments local = local_segments(map, owner);
    for (const RowRange& range : rows[i]) {
      const std::int64_t range_end = range.begin + range.len;
      auto it = std::partition_point(local.list.begin(), local.list.end(),
                                     [&](const Segment& segment) { return segment.row + segment.len <= range.begin; });
      for (; it != local.list.end() && it->row < range_end; ++it) {
        const std::int64_t from = std::max(range.begin, it->row);
        const std::int64_t token = it->token + (from - it->row) * map.stride();
        result.list.push_back({0, std::min(range_end, it->row + it->len) - from, token, owner, from});
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

Segments whole_segments(const TokenMap& map, int first, int count) {
  std::vector<std::vector<RowRange>> rows;
  for (int rank = first; rank < first + count; ++rank) rows.push_back({{0, map.rows(rank)}});
  return gathered_segments(map, first, rows);
}

std::vector<Slice> intersect(std::span<const Slice> slices, const Segments& q, const Segments& k) {
  std::vector<Slice> pieces;
  if (q.stride == 1) {
    const auto q_runs = runs_of(q);
    const auto k_runs = runs_of(k);
    add_pieces(slices, q_runs, k_runs, pieces);
  } else {
    add_strided_pieces(slices, q, k, pieces);
  }
  std::vector<Slice> result = joined(std::move(pieces));
  for (Slice& slice : result) slice = trim(slice);
  sort_if_needed(result, [](const Slice& a, const Slice& b) {
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

std::vector<std::vector<RowRange>> visible_key_tokens(std::span<const Slice> slices, const Segments& q, int ranks,
                                                      int inner) {
  std::vector<std::vector<RowRange>> tokens(static_cast<std::size_t>(ranks / inner));
  RunSearch search(q.list);
  for (const Slice& slice : slices) {
    const Band visible = band(slice);
    for_run_parts(slice.q_begin, slice.q_len, search, [&](const Segment& run, TokenRange rows) {
      const TokenRange seen = seen_by(slice, visible, rows);
      if (seen.begin >= seen.end) return;
      append_range(tokens[static_cast<std::size_t>(run.owner / inner)],
                   {slice.k_begin + seen.begin, seen.end - seen.begin});
    });
  }
  for (auto& ranges : tokens) ranges = merged(std::move(ranges));
  return tokens;
}

std::vector<RowRange> seeing_query_tokens(std::span<const Slice> slices) {
  std::vector<RowRange> ranges;
  for (const Slice& slice : slices) {
    const Slice seeing = trim(slice);
    if (seeing.q_len > 0) append_range(ranges, {seeing.q_begin, seeing.q_len});
  }
  return merged(std::move(ranges));
}

std::vector<RowRange> rows_of_tokens(std::span<const RowRange> tokens, const TokenMap& map, int owner) {
  std::vector<RowRange> rows;
  for (const Segment& segment : local_segments(map, owner).list) {
    const std::int64_t end = segment.token + (segment.len - 1) * map.stride() + 1;
    auto range = std::partition_point(tokens.begin(), tokens.end(),
                                      [&](const RowRange& each) { return each.begin + each.len <= segment.token; });
    for (; range != tokens.end() && range->begin < end; ++range) {
      const Overlap found = overlap(segment, map.stride(), range->begin, range->begin + range->len);
      if (found.count > 0) append_range(rows, {segment.row + found.first, found.count});
    }
  }
  return rows;
}

std::vector<Slice> slices_of(std::span<const Slice> slices, const Segments& q) {
  std::vector<Slice> result;
  for (const Slice& slice : slices) {
    bool meets = false;
    for_overlaps(q, slice.q_begin, slice.q_begin + slice.q_len, [&](const Segment&, Overlap) { meets = true; });
    if (meets) result.push_back(slice);
  }
  return result;
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
