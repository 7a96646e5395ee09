// Who gets which pieces of a buffer: the bookkeeping of balanced shards.
#pragma once

#include <cstdint>
#include <vector>

#include "shard/row_costs.hpp"
#include "shard/runs.hpp"

namespace rotunda {

/// Tokens [begin, begin + len) and their pairs.
struct Piece {
  std::int64_t begin = 0, len = 0;
  double cost = 0;
};

/// Places pieces on ranks, one by one, so that in the end every rank has between L and U = L + chunk_size tokens.
///
/// A piece may go where it leaves both ends within reach: the rank stays at or below U, and what is left to place still
/// suffices to bring every rank up to L. With D the tokens that the ranks lack to L, and S = left - D what is to spare,
/// a rank with t tokens has room for min(U - t, max(0, L - t) + S). While something is left some rank has room.
class Placement {
 public:
  Placement(const RowCosts& costs, std::int64_t tokens, int ranks, std::int64_t chunk_size);

  /// Puts a document on the rank `wanted` if it has room, else on the least loaded rank that has. -1: none has.
  int place_whole(const Piece& piece, int wanted);
  /// Puts a chunk on the least loaded rank that has room; where none has, it is cut.
  void place_chunk(Piece piece);
  /// Once all is placed: parts of chunks go from the costliest rank to the cheapest, in exchange for as many tokens of
  /// the other's chunks or within L and U alone, until imbalance() <= goal or nothing is gained.
  void even_out(double goal);

  /// Pairs of the costliest rank ÷ mean; 1 where there are no pairs.
  [[nodiscard]] double imbalance() const;
  /// Ascending and joined, by rank.
  [[nodiscard]] Runs runs() const;

 private:
  struct Rank {
    std::int64_t tokens = 0;
    double cost = 0;
    std::vector<Piece> whole, chunks;
  };
  /// `len` tokens of the end of a chunk of one rank go to another; with `exchange`, as many of the start of one of the
  /// other's chunks come back.
  struct Transfer {
    std::size_t from = 0, to = 0;  ///< indices of the chunks
    std::int64_t len = 0;
    bool exchange = false;
    double moved = 0;  ///< pairs that change sides
  };

  [[nodiscard]] std::int64_t room(const Rank& rank) const;
  /// The least loaded rank with room for `len` tokens, or -1.
  [[nodiscard]] int least_loaded(std::int64_t len) const;
  void add(Rank& rank, std::vector<Piece>& list, const Piece& piece);
  [[nodiscard]] Transfer fit(Transfer transfer, const Rank& from, const Rank& to, double wanted) const;
  [[nodiscard]] Transfer best_transfer(const Rank& from, const Rank& to, double wanted) const;
  void apply(Rank& from, Rank& to, const Transfer& transfer);

  const RowCosts& costs_;
  std::int64_t low_ = 0, high_ = 0;  ///< L and U
  std::int64_t left_ = 0, lacking_ = 0;
  double total_ = 0;
  std::vector<Rank> ranks_;
};

}  // namespace rotunda
