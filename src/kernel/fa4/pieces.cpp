#include "kernel/fa4/pieces.hpp"

#include <algorithm>
#include <initializer_list>
#include <map>
#include <tuple>

#include "kernel/grouping.hpp"

namespace rotunda::fa4 {
namespace {

struct Span {
  std::int64_t batch = 0, begin = 0, end = 0;

  bool operator<(const Span& other) const {
    return std::tie(batch, begin, end) < std::tie(other.batch, other.begin, other.end);
  }
};

Span rows_of(const Piece& piece, Side side) {
  if (side == Side::query) return {piece.batch, piece.q_begin, piece.q_begin + piece.q_len};
  return {piece.batch, piece.k_begin, piece.k_begin + piece.k_len};
}

std::vector<Span> spans_of(std::span<const Piece> pieces, Side side) {
  std::vector<Span> spans;
  spans.reserve(pieces.size());
  for (const Piece& piece : pieces) spans.push_back(rows_of(piece, side));
  std::sort(spans.begin(), spans.end());
  return spans;
}

/// A piece's rows [q, q_end) and keys [k, k_end), which lie within it; nothing may be visible there.
Piece part(const Piece& piece, std::int64_t q, std::int64_t q_end, std::int64_t k, std::int64_t k_end) {
  Piece result = piece;
  const std::int64_t shift = (k - piece.k_begin) - (q - piece.q_begin);
  result.low -= shift;
  result.high -= shift;
  result.q_begin = q;
  result.q_len = q_end - q;
  result.k_begin = k;
  result.k_len = k_end - k;
  return result;
}

bool sees_something(const Piece& piece) {
  return piece.q_len > 0 && piece.k_len > 0 && piece.low <= piece.high && piece.low <= piece.k_len - 1 &&
         piece.high >= 1 - piece.q_len;
}

void longest_first(Launch& launch, Side side) {
  std::stable_sort(launch.begin(), launch.end(),
                   [side](const Piece& a, const Piece& b) { return length_of(a, side) > length_of(b, side); });
}

/// Adds a segment of rows [begin, end) and the tiles of its sums.
void add_segment(SumRows& to, std::int64_t batch, std::int64_t begin, std::int64_t end, int tile) {
  to.segments.push_back({batch, begin, end - begin, to.rows});
  to.rows += (end - begin + tile - 1) / tile * tile;
}

/// Where pieces begin and end inside a run of rows that overlap, a segment ends, unless a tile does there.
void cut_run(SumRows& to, std::span<const Span> run, int tile) {
  std::vector<std::int64_t> edges;
  for (const Span& span : run) edges.insert(edges.end(), {span.begin, span.end});
  std::sort(edges.begin(), edges.end());
  edges.erase(std::unique(edges.begin(), edges.end()), edges.end());
  std::int64_t begin = edges.front();
  for (std::size_t i = 1; i < edges.size(); ++i) {
    const bool last = i + 1 == edges.size();
    if (!last && (edges[i] - begin) % tile == 0) continue;
    add_segment(to, run.front().batch, begin, edges[i], tile);
    begin = edges[i];
  }
}

SumRows cut_rows(std::span<const Piece> pieces, Side side, int tile) {
  SumRows result;
  const std::vector<Span> spans = spans_of(pieces, side);
  for (std::size_t begin = 0, end = 0; begin < spans.size(); begin = end) {
    std::int64_t reach = spans[begin].end;
    for (end = begin + 1; end < spans.size(); ++end) {
      if (spans[end].batch != spans[begin].batch || spans[end].begin >= reach) break;
      reach = std::max(reach, spans[end].end);
    }
    cut_run(result, std::span(spans).subspan(begin, end - begin), tile);
  }
  return result;
}

/// The first segment that ends after a row of a batch entry.
std::size_t find_segment(const SumRows& rows, std::int64_t batch, std::int64_t row) {
  const auto at = std::partition_point(rows.segments.begin(), rows.segments.end(), [&](const Segment& s) {
    return std::tuple(s.batch, s.begin + s.len) <= std::tuple(batch, row);
  });
  return static_cast<std::size_t>(at - rows.segments.begin());
}

/// Calls `visit(segment, begin, end)` for each part of [begin, end) that lies in one segment.
template <class Visit>
void for_each_segment(const SumRows& rows, const Span& span, Visit&& visit) {
  for (std::size_t i = find_segment(rows, span.batch, span.begin); i < rows.segments.size(); ++i) {
    const Segment& segment = rows.segments[i];
    if (segment.batch != span.batch || segment.begin >= span.end) return;
    visit(segment, std::max(span.begin, segment.begin), std::min(span.end, segment.begin + segment.len));
  }
}

/// Rows that pieces of a launch have taken so far: disjoint spans.
class TakenRows {
 public:
  [[nodiscard]] bool overlaps(const Span& span) const {
    const auto after = ends_.lower_bound({span.batch, span.end});
    if (after == ends_.begin()) return false;
    const auto before = std::prev(after);
    return before->first.first == span.batch && before->second > span.begin;
  }
  void add(const Span& span) { ends_[{span.batch, span.begin}] = span.end; }

 private:
  std::map<std::pair<std::int64_t, std::int64_t>, std::int64_t> ends_;
};

/// Each piece goes to the first launch in which none of its rows on the sides named is taken.
std::vector<Launch> launches_apart(std::span<const Piece> pieces, std::initializer_list<Side> sides) {
  struct Taken {
    TakenRows q, k;
  };
  std::vector<Launch> launches;
  std::vector<Taken> taken;
  const auto rows = [](Taken& of, Side side) -> TakenRows& { return side == Side::query ? of.q : of.k; };
  for (const Piece& piece : pieces) {
    std::size_t at = 0;
    const auto clashes = [&](Side side) { return rows(taken[at], side).overlaps(rows_of(piece, side)); };
    while (at < launches.size() && std::any_of(sides.begin(), sides.end(), clashes)) ++at;
    if (at == launches.size()) {
      launches.emplace_back();
      taken.emplace_back();
    }
    launches[at].push_back(piece);
    for (const Side side : sides) rows(taken[at], side).add(rows_of(piece, side));
  }
  return launches;
}

/// Rows [0, rows) of each batch entry that are in none of the pieces, as pieces without the other side.
std::vector<Piece> rows_between(std::span<const Piece> pieces, Side side, std::int64_t batches, std::int64_t rows) {
  std::vector<Piece> result;
  const std::vector<Span> spans = spans_of(pieces, side);
  std::size_t at = 0;
  for (std::int64_t batch = 0; batch < batches; ++batch) {
    std::int64_t next = 0;
    const auto add_until = [&](std::int64_t end) {
      if (end <= next) return;
      Piece& piece = result.emplace_back();
      piece.batch = batch;
      (side == Side::query ? piece.q_begin : piece.k_begin) = next;
      (side == Side::query ? piece.q_len : piece.k_len) = end - next;
    };
    for (; at < spans.size() && spans[at].batch == batch; ++at) {
      add_until(spans[at].begin);
      next = std::max(next, spans[at].end);
    }
    add_until(rows);
  }
  return result;
}

}  // namespace

std::vector<Piece> joined_pieces(std::span<const Slice> slices) {
  std::vector<Piece> pieces;
  for (const BandedRectangle& rectangle : join_slices(slices)) {
    const SliceRegion& r = rectangle.region;
    const std::int64_t shift = r.k_begin - r.q_begin;
    pieces.push_back({rectangle.batch, r.q_begin, r.q_end - r.q_begin, r.k_begin, r.k_end - r.k_begin, r.low - shift,
                      r.high - shift});
  }
  return pieces;
}

std::vector<Launch> forward_launches(std::span<const Slice> slices, std::int64_t batches, std::int64_t rows, bool init,
                                     bool last) {
  std::vector<Launch> launches = launches_apart(joined_pieces(slices), {Side::query});
  if (launches.empty() && (init || last)) launches.emplace_back();
  const auto complete = [&](Launch& launch) {
    const std::vector<Piece> rest = rows_between(launch, Side::query, batches, rows);
    launch.insert(launch.end(), rest.begin(), rest.end());
  };
  if (init) complete(launches.front());
  if (last && !(init && launches.size() == 1)) complete(launches.back());
  for (Launch& launch : launches) longest_first(launch, Side::key);
  return launches;
}

BackwardLaunches backward_launches(std::span<const Slice> slices, int tile_q, int tile_k, bool apart) {
  BackwardLaunches result;
  const std::vector<Piece> whole = joined_pieces(slices);
  result.q = cut_rows(whole, Side::query, tile_q);
  result.k = cut_rows(whole, Side::key, tile_k);
  std::vector<Piece> pieces;
  for (const Piece& piece : whole) {
    const Span rows = rows_of(piece, Side::query), keys = rows_of(piece, Side::key);
    for_each_segment(result.q, rows, [&](const Segment& q, std::int64_t q_begin, std::int64_t q_end) {
      for_each_segment(result.k, keys, [&](const Segment& k, std::int64_t k_begin, std::int64_t k_end) {
        Piece cut = part(piece, q_begin, q_end, k_begin, k_end);
        cut.q_sum = q.sum + (q_begin - q.begin);
        cut.k_sum = k.sum + (k_begin - k.begin);
        if (sees_something(cut)) pieces.push_back(cut);
      });
    });
  }
  result.pieces = static_cast<std::int64_t>(pieces.size());
  if (apart) {
    result.launches = launches_apart(pieces, {Side::query, Side::key});
  } else if (!pieces.empty()) {
    result.launches.push_back(std::move(pieces));
  }
  for (Launch& launch : result.launches) longest_first(launch, Side::query);
  return result;
}

std::optional<BackwardLaunches> direct_launch(std::span<const Slice> slices, int tile_q, std::int64_t batches,
                                              std::int64_t rows_k) {
  BackwardLaunches result;
  const std::vector<Piece> whole = joined_pieces(slices);
  result.q = cut_rows(whole, Side::query, tile_q);
  Launch launch;
  TakenRows keys;
  for (const Piece& piece : whole) {
    const std::size_t at = find_segment(result.q, piece.batch, piece.q_begin);
    const Segment& segment = result.q.segments[at];
    const bool cut = piece.q_begin + piece.q_len > segment.begin + segment.len;
    if (cut || keys.overlaps(rows_of(piece, Side::key))) return std::nullopt;
    keys.add(rows_of(piece, Side::key));
    launch.push_back(piece);
    launch.back().q_sum = segment.sum + (piece.q_begin - segment.begin);
  }
  const std::vector<Piece> rest = rows_between(launch, Side::key, batches, rows_k);
  launch.insert(launch.end(), rest.begin(), rest.end());
  longest_first(launch, Side::query);
  result.pieces = static_cast<std::int64_t>(launch.size());
  if (!launch.empty()) result.launches.push_back(std::move(launch));
  return result;
}

}  // namespace rotunda::fa4
