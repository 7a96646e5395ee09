#include "kernel/cpu/work_list.hpp"

#include <algorithm>
#include <map>

namespace rotunda::cpu {
namespace {

/// Far beyond any position, yet sums of a few never overflow.
std::int64_t band_edge(std::int64_t edge) {
  constexpr std::int64_t far = std::int64_t{1} << 61;
  return std::clamp(edge, -far, far);
}

/// Row i sees key k iff -left <= k + shift - i <= right.
std::int64_t band_shift(const Slice& slice) {
  return slice.k_pos - slice.k_begin - slice.q_pos + slice.q_begin;
}

Interval tidy(Interval a) {
  return {a.begin, std::max(a.begin, a.end)};
}

std::int64_t divide_up(std::int64_t a, std::int64_t b) {
  return (a + b - 1) / b;
}

}  // namespace

Interval intersect(Interval a, Interval b) {
  return tidy({std::max(a.begin, b.begin), std::min(a.end, b.end)});
}

Interval visible_keys(const Slice& slice, Interval rows) {
  const Interval mine = intersect(rows, {slice.q_begin, slice.q_begin + slice.q_len});
  if (mine.empty()) return {slice.k_begin, slice.k_begin};
  const std::int64_t shift = band_shift(slice);
  return intersect({slice.k_begin, slice.k_begin + slice.k_len},
                   {mine.begin - band_edge(slice.left) - shift, mine.end + band_edge(slice.right) - shift});
}

Interval visible_rows(const Slice& slice, Interval keys) {
  const Interval mine = intersect(keys, {slice.k_begin, slice.k_begin + slice.k_len});
  if (mine.empty()) return {slice.q_begin, slice.q_begin};
  const std::int64_t shift = band_shift(slice);
  return intersect({slice.q_begin, slice.q_begin + slice.q_len},
                   {mine.begin + shift - band_edge(slice.right), mine.end + shift + band_edge(slice.left)});
}

void mark_lanes(const Slice& slice, Interval keys, Interval rows, std::int32_t* first, std::int32_t* last) {
  for (std::int64_t k = keys.begin; k < keys.end; ++k) {
    const Interval seen = intersect(rows, visible_rows(slice, {k, k + 1}));
    *first++ = seen.empty() ? 0 : static_cast<std::int32_t>(seen.begin - rows.begin);
    *last++ = seen.empty() ? 0 : static_cast<std::int32_t>(seen.end - rows.begin);
  }
}

std::vector<HeadUnit> query_units(const HeadMap& map, int q_heads, int most) {
  std::vector<HeadUnit> units;
  for (int head = 0; head < q_heads; ++head) {
    const int kv = map.kv(head);
    if (units.empty() || units.back().kv != kv || units.back().q_count == most) units.push_back({kv, head, 0});
    ++units.back().q_count;
  }
  return units;
}

std::vector<HeadUnit> kv_units(const HeadMap& map, int q_heads, int kv_heads) {
  std::vector<HeadUnit> units(static_cast<std::size_t>(kv_heads));
  for (int kv = 0; kv < kv_heads; ++kv) units[static_cast<std::size_t>(kv)].kv = kv;
  for (const HeadUnit& found : query_units(map, q_heads, q_heads)) units[static_cast<std::size_t>(found.kv)] = found;
  return units;
}

std::vector<QueryTile> query_tiles(std::span<const Slice> slices, const TensorView& q, int tile_rows, bool all) {
  const std::int64_t per_batch = divide_up(q.rows(), tile_rows);
  std::vector<QueryTile> tiles(static_cast<std::size_t>(per_batch * q.batch()));
  for (std::int64_t n = 0; n < static_cast<std::int64_t>(tiles.size()); ++n) {
    // Descending rows: under a causal mask late rows cost most, and a long task should not be the last to start.
    const std::int64_t begin = (per_batch - 1 - n / q.batch()) * tile_rows;
    tiles[static_cast<std::size_t>(n)] = {n % q.batch(), {begin, std::min(begin + tile_rows, q.rows())}, {}};
  }
  for (const Slice& slice : slices) {
    const Interval rows = visible_rows(slice, {slice.k_begin, slice.k_begin + slice.k_len});
    if (rows.empty()) continue;
    for (std::int64_t tile = rows.begin / tile_rows; tile <= (rows.end - 1) / tile_rows; ++tile) {
      const std::int64_t place = (per_batch - 1 - tile) * q.batch() + slice.batch;
      tiles[static_cast<std::size_t>(place)].slices.push_back(&slice);
    }
  }
  if (!all) std::erase_if(tiles, [](const QueryTile& tile) { return tile.slices.empty(); });
  return tiles;
}

KeyChunks key_chunks(std::span<const Slice> slices, const TensorView& q, const TensorView& k, const TileSizes& sizes) {
  KeyChunks result;
  result.tiles = divide_up(q.rows(), sizes.lanes);
  result.visits_of_tile.assign(static_cast<std::size_t>(result.tiles * q.batch()), 0);
  const std::int64_t per_batch = divide_up(k.rows(), sizes.keys);
  std::vector<std::vector<const Slice*>> of_chunk(static_cast<std::size_t>(per_batch * k.batch()));
  for (const Slice& slice : slices) {
    if (slice.k_len == 0) continue;
    const std::int64_t last = (slice.k_begin + slice.k_len - 1) / sizes.keys;
    for (std::int64_t chunk = slice.k_begin / sizes.keys; chunk <= last; ++chunk) {
      of_chunk[static_cast<std::size_t>(chunk * k.batch() + slice.batch)].push_back(&slice);
    }
  }
  for (std::int64_t n = 0; n < per_batch * k.batch(); ++n) {
    const std::int64_t begin = n / k.batch() * sizes.keys;
    KeyChunk chunk{n % k.batch(), {begin, std::min(begin + sizes.keys, k.rows())}, {}};
    std::map<std::int64_t, std::vector<const Slice*>> of_tile;
    for (const Slice* slice : of_chunk[static_cast<std::size_t>(n)]) {
      const Interval rows = visible_rows(*slice, chunk.keys);
      if (rows.empty()) continue;
      for (std::int64_t tile = rows.begin / sizes.lanes; tile <= (rows.end - 1) / sizes.lanes; ++tile) {
        of_tile[tile].push_back(slice);
      }
    }
    for (auto& [tile, seen] : of_tile) {
      int& turn = result.visits_of_tile[static_cast<std::size_t>(chunk.batch * result.tiles + tile)];
      chunk.visits.push_back({tile, turn++, std::move(seen)});
    }
    result.chunks.push_back(std::move(chunk));
  }
  return result;
}

}  // namespace rotunda::cpu
