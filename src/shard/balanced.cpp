#include "shard/balanced.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <span>

#include "shard/placement.hpp"
#include "shard/row_costs.hpp"
#include "shard/runs.hpp"

namespace rotunda {
namespace {

/// A costliest rank this little above the mean is good enough: less than the noise of a step's time.
constexpr double kGoodImbalance = 1.02;
/// Splitting more documents must lower the imbalance by at least this.
constexpr double kWorthSplitting = 0.005;

/// One way to share out the documents.
struct Outcome {
  Runs runs;
  std::vector<int> owners;  ///< by document; -1: split (or empty)
  double imbalance = 0;
};

/// The tokens of one side of a problem.
struct SideTokens {
  std::vector<std::int64_t> offsets;
  RowCosts costs;
  int ranks = 1;
  std::int64_t chunk_size = 1;
  std::vector<int> wanted;           ///< by document: the rank where it should go; empty or -1: any
  std::vector<std::size_t> by_cost;  ///< documents that have tokens, costliest first

  SideTokens(const Problem& problem, std::span<const Slice> slices, Side side, int rank_count, std::int64_t chunk)
      : offsets(document_offsets(problem, side)), costs(slices, side), ranks(rank_count) {
    const std::int64_t all = offsets.back();
    chunk_size = std::clamp<std::int64_t>(chunk == 0 ? default_chunk_size(all, ranks) : chunk, 1,
                                          std::max<std::int64_t>(all, 1));
    std::vector<double> cost;
    for (std::size_t i = 0; i + 1 < offsets.size(); ++i) {
      cost.push_back(costs.of(offsets[i], length(i)));
      if (length(i) > 0) by_cost.push_back(i);
    }
    std::ranges::stable_sort(by_cost, [&](std::size_t a, std::size_t b) {
      return cost[a] != cost[b] ? cost[a] > cost[b] : length(a) > length(b);
    });
  }

  [[nodiscard]] std::int64_t length(std::size_t document) const { return offsets[document + 1] - offsets[document]; }
  [[nodiscard]] int wanted_rank(std::size_t document) const { return wanted.empty() ? -1 : wanted[document]; }
  [[nodiscard]] Piece piece(std::int64_t begin, std::int64_t len) const { return {begin, len, costs.of(begin, len)}; }
};

/// The chunks of the documents, heaviest first.
std::vector<Piece> chunks_of(const SideTokens& side, const std::vector<std::size_t>& documents) {
  std::vector<Piece> chunks;
  for (const std::size_t document : documents) {
    const std::int64_t end = side.offsets[document + 1];
    for (std::int64_t begin = side.offsets[document]; begin < end; begin += side.chunk_size) {
      chunks.push_back(side.piece(begin, std::min(side.chunk_size, end - begin)));
    }
  }
  std::ranges::stable_sort(
      chunks, [](const Piece& a, const Piece& b) { return a.cost != b.cost ? a.cost > b.cost : a.begin < b.begin; });
  return chunks;
}

/// Shares out the documents with the `splits` costliest cut into chunks, and those that fit on no rank.
Outcome share_out(const SideTokens& side, std::size_t splits) {
  Placement placement(side.costs, side.offsets.back(), side.ranks, side.chunk_size);
  Outcome outcome;
  outcome.owners.assign(side.offsets.size() - 1, -1);
  std::vector<std::size_t> split(side.by_cost.begin(), side.by_cost.begin() + static_cast<std::ptrdiff_t>(splits));
  for (std::size_t i = splits; i < side.by_cost.size(); ++i) {
    const std::size_t document = side.by_cost[i];
    const Piece whole = side.piece(side.offsets[document], side.length(document));
    const int rank = placement.place_whole(whole, side.wanted_rank(document));
    outcome.owners[document] = rank;
    if (rank < 0) split.push_back(document);
  }
  for (const Piece& chunk : chunks_of(side, split)) placement.place_chunk(chunk);
  placement.even_out(kGoodImbalance);
  outcome.imbalance = placement.imbalance();
  outcome.runs = placement.runs();
  return outcome;
}

/// The outcome with the fewest split documents that is good enough, else the best.
Outcome best_outcome(const SideTokens& side) {
  const std::size_t documents = side.by_cost.size();
  Outcome best = share_out(side, 0);
  for (std::size_t splits = 1; best.imbalance > kGoodImbalance && splits <= documents; splits *= 2) {
    Outcome outcome = share_out(side, splits);
    if (outcome.imbalance < best.imbalance - kWorthSplitting) best = std::move(outcome);
  }
  return best;
}

}  // namespace

std::int64_t default_chunk_size(std::int64_t tokens, int ranks) {
  const std::int64_t chunks = 8 * static_cast<std::int64_t>(ranks);
  const std::int64_t size = std::max<std::int64_t>(1, tokens / chunks + (tokens % chunks != 0 ? 1 : 0));
  return size < 64 ? size : (size + 63) / 64 * 64;
}

Shard balanced_shard(const Problem& problem, int ranks, std::int64_t chunk_size) {
  const std::vector<Slice> slices = mask_slices(problem);
  const SideTokens q(problem, slices, Side::query, ranks, chunk_size);
  Outcome queries = best_outcome(q);
  Shard shard{ShardKind::balanced, q.chunk_size, {q.offsets.back(), 1, std::move(queries.runs)}, {}};
  if (document_offsets(problem, Side::key) == q.offsets) {
    shard.k = shard.q;
    return shard;
  }
  SideTokens k(problem, slices, Side::key, ranks, chunk_size);
  k.wanted = std::move(queries.owners);
  shard.k = {k.offsets.back(), 1, best_outcome(k).runs};
  return shard;
}

}  // namespace rotunda
