// From slices to tiles: which tile meets which slices, and which rows see which keys. Host only, no SIMD.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernel/cpu/tile_sizes.hpp"
#include "kernel/kernel.hpp"

namespace rotunda::cpu {

/// [begin, end); empty ones have begin == end.
struct Interval {
  std::int64_t begin = 0, end = 0;
  [[nodiscard]] std::int64_t size() const { return end - begin; }
  [[nodiscard]] bool empty() const { return begin >= end; }
};
[[nodiscard]] Interval intersect(Interval a, Interval b);

/// Keys (buffer rows) that at least one of `rows` sees through the slice's band; may hold keys that none sees where
/// the band is empty.
[[nodiscard]] Interval visible_keys(const Slice& slice, Interval rows);
/// Query rows that see at least one of `keys`, likewise.
[[nodiscard]] Interval visible_rows(const Slice& slice, Interval keys);
/// marks[i].first, last for keys [keys.begin, keys.end): the rows that see each, counted from rows.begin.
void mark_lanes(const Slice& slice, Interval keys, Interval rows, std::int32_t* first, std::int32_t* last);

/// Query heads [q_begin, q_begin + q_count) that read KV head `kv`.
struct HeadUnit {
  int kv = 0, q_begin = 0, q_count = 0;
};
/// Every query head once, at most `most` of them a unit, neighbours that share a KV head together.
[[nodiscard]] std::vector<HeadUnit> query_units(const HeadMap& map, int q_heads, int most);
/// One unit for each KV head, perhaps with no query heads.
[[nodiscard]] std::vector<HeadUnit> kv_units(const HeadMap& map, int q_heads, int kv_heads);

/// Query rows of one batch entry and the slices that show them keys, in the caller's order.
struct QueryTile {
  std::int64_t batch = 0;
  Interval rows;
  std::vector<const Slice*> slices;
};
/// Tiles of `tile_rows` rows, the costliest (last) rows first. `all`: also tiles that no slice meets.
[[nodiscard]] std::vector<QueryTile> query_tiles(std::span<const Slice> slices, const TensorView& q, int tile_rows,
                                                 bool all);

/// A query tile as a key chunk meets it. `turn` counts the chunks that meet the tile before this one.
struct Visit {
  std::int64_t tile = 0;
  int turn = 0;
  std::vector<const Slice*> slices;
};
/// Keys of one batch entry and the query tiles that see them, ascending.
struct KeyChunk {
  std::int64_t batch = 0;
  Interval keys;
  std::vector<Visit> visits;
};
struct KeyChunks {
  std::vector<KeyChunk> chunks;     ///< by (chunk number, batch), so that neighbours are independent
  std::int64_t tiles = 0;           ///< query tiles of a batch entry
  std::vector<int> visits_of_tile;  ///< [batch][tile]
};
[[nodiscard]] KeyChunks key_chunks(std::span<const Slice> slices, const TensorView& q, const TensorView& k,
                                   const TileSizes& sizes);

}  // namespace rotunda::cpu
