// Which tiles and blocks of a component hold visible pairs.
#pragma once

#include <cstdint>
#include <vector>

#include "kernel/sm90/wide/backward_components.hpp"
#include "kernel/sm90/wide/backward_work.hpp"

namespace rotunda::sm90::wide {

/// Key tiles [begin, end) of a query tile: from the first to the last with a visible pair.
struct KeyTiles {
  int begin = 0, end = 0;
};

class Visibility {
 public:
  explicit Visibility(const Component& component);

  [[nodiscard]] const Component& component() const { return *component_; }
  [[nodiscard]] int q_blocks() const { return q_blocks_; }
  [[nodiscard]] int k_blocks() const { return k_blocks_; }
  [[nodiscard]] int q_tiles() const { return (q_blocks_ + kRowBlocks - 1) / kRowBlocks; }
  /// Tiles of kGradientRows keys.
  [[nodiscard]] int k_cells() const;

  /// Some row of the 64 sees some key of the 64. False beyond the component.
  [[nodiscard]] bool sees(int q_block, int k_block) const {
    return q_block < q_blocks_ && k_block < k_blocks_ && seen_[index(q_block, k_block)];
  }
  [[nodiscard]] KeyTiles key_tiles(int q_tile) const;
  /// Appends the bands of a tile to `bands` unless one slice shows all of it. Returns whether any pair is visible.
  bool add_bands(int q_tile, int k_tile, std::vector<TileBand>& bands) const;

  /// Bit r: row r of the block is in a slice.
  [[nodiscard]] std::uint64_t q_rows(int q_block) const { return q_rows_[static_cast<std::size_t>(q_block)]; }
  [[nodiscard]] std::uint64_t k_rows(int k_block) const { return k_rows_[static_cast<std::size_t>(k_block)]; }

 private:
  [[nodiscard]] std::size_t index(int q_block, int k_block) const {
    return static_cast<std::size_t>(q_block) * static_cast<std::size_t>(k_blocks_) + static_cast<std::size_t>(k_block);
  }

  const Component* component_;
  int q_blocks_, k_blocks_;
  std::vector<bool> seen_;
  std::vector<std::uint64_t> q_rows_, k_rows_;
};

}  // namespace rotunda::sm90::wide
