#include "kernel/sm90/wide/backward_visibility.hpp"

#include <algorithm>

#include "base/fail.hpp"
#include "problem/band.hpp"

namespace rotunda::sm90::wide {
namespace {

int blocks_of(std::int64_t rows) {
  return static_cast<int>((rows + kBlock - 1) / kBlock);
}

/// Sets the bits of rows [begin, end).
void cover(std::vector<std::uint64_t>& masks, std::int64_t begin, std::int64_t end) {
  for (std::int64_t at = begin; at < end;) {
    const std::int64_t block = at / kBlock, first = at % kBlock;
    const std::int64_t count = std::min<std::int64_t>(kBlock - first, end - at);
    const std::uint64_t ones = count == kBlock ? ~std::uint64_t{0} : (std::uint64_t{1} << count) - 1;
    masks[static_cast<std::size_t>(block)] |= ones << first;
    at += count;
  }
}

std::int16_t narrow(std::int64_t value, std::int64_t low, std::int64_t high) {
  return static_cast<std::int16_t>(std::clamp(value, low, high));
}

/// A slice as a tile sees it, edges clamped to where they stop mattering.
TileBand band_in_tile(const Slice& slice, std::int64_t row, std::int64_t key) {
  const Band b = band(slice);
  const std::int64_t shift = (row - slice.q_begin) - (key - slice.k_begin);
  constexpr std::int64_t kFar = kTileRows + kTileKeys;
  return {narrow(slice.q_begin - row, 0, kTileRows), narrow(slice.q_begin + slice.q_len - row, 0, kTileRows),
          narrow(slice.k_begin - key, 0, kTileKeys), narrow(slice.k_begin + slice.k_len - key, 0, kTileKeys),
          narrow(b.low + shift, -kFar, kFar),        narrow(b.high + shift, -kFar, kFar)};
}

bool has_pairs(const TileBand& b) {
  if (b.row_begin >= b.row_end || b.key_begin >= b.key_end) return false;
  return std::max<int>(b.low, b.key_begin - b.row_end + 1) <= std::min<int>(b.high, b.key_end - 1 - b.row_begin);
}

bool is_full(const TileBand& b) {
  return b.row_begin == 0 && b.row_end == kTileRows && b.key_begin == 0 && b.key_end == kTileKeys &&
         b.low <= 1 - kTileRows && b.high >= kTileKeys - 1;
}

}  // namespace

Visibility::Visibility(const Component& component)
    : component_(&component),
      q_blocks_(blocks_of(component.q_len)),
      k_blocks_(blocks_of(component.k_len)),
      seen_(static_cast<std::size_t>(q_blocks_) * static_cast<std::size_t>(k_blocks_)),
      q_rows_(static_cast<std::size_t>(q_blocks_)),
      k_rows_(static_cast<std::size_t>(k_blocks_)) {
  for (const Slice& slice : component.slices) {
    cover(q_rows_, slice.q_begin, slice.q_begin + slice.q_len);
    cover(k_rows_, slice.k_begin, slice.k_begin + slice.k_len);
    const Band b = band(slice);
    const std::int64_t q_end = slice.q_begin + slice.q_len;
    for (std::int64_t block = slice.q_begin / kBlock; block * kBlock < q_end; ++block) {
      // Rows of a band see neighbouring keys: together all from the first row's first to the last row's last.
      const std::int64_t row = std::max(block * kBlock, slice.q_begin) - slice.q_begin;
      const std::int64_t last_row = std::min((block + 1) * kBlock, q_end) - 1 - slice.q_begin;
      const std::int64_t begin = slice.k_begin + std::max<std::int64_t>(0, row + b.low);
      const std::int64_t end = slice.k_begin + std::min(slice.k_len, last_row + b.high + 1);
      for (std::int64_t k = begin / kBlock; k * kBlock < end; ++k) {
        seen_[index(static_cast<int>(block), static_cast<int>(k))] = true;
      }
    }
  }
}

int Visibility::k_cells() const {
  constexpr int kCellBlocks = kGradientRows / kBlock;
  return (k_blocks_ + kCellBlocks - 1) / kCellBlocks;
}

KeyTiles Visibility::key_tiles(int q_tile) const {
  int first = k_blocks_, end = 0;
  for (int r = 0; r < kRowBlocks; ++r) {
    for (int k = 0; k < k_blocks_; ++k) {
      if (!sees(q_tile * kRowBlocks + r, k)) continue;
      first = std::min(first, k);
      end = std::max(end, k + 1);
    }
  }
  if (end == 0) return {};
  return {first / kKeyBlocks, (end + kKeyBlocks - 1) / kKeyBlocks};
}

bool Visibility::add_bands(int q_tile, int k_tile, std::vector<TileBand>& bands) const {
  const std::size_t before = bands.size();
  for (const Slice& slice : component_->slices) {
    const TileBand one = band_in_tile(slice, std::int64_t{q_tile} * kTileRows, std::int64_t{k_tile} * kTileKeys);
    if (!has_pairs(one)) continue;
    if (is_full(one)) {
      bands.resize(before);
      return true;
    }
    bands.push_back(one);
  }
  return bands.size() > before;
}

}  // namespace rotunda::sm90::wide
