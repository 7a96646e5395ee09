#include "shard/placement.hpp"

#include <algorithm>
#include <cmath>
#include <tuple>

namespace rotunda {
namespace {

/// even_out looks at this many chunks a rank: more are so small that placing them has evened out already.
constexpr std::size_t kSwapCandidates = 32;

/// Indices of the chunks of the greatest (or least) cost a token.
std::vector<std::size_t> extremes(const std::vector<Piece>& chunks, bool greatest) {
  std::vector<std::size_t> order(chunks.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  const auto density = [&](std::size_t i) { return chunks[i].cost / static_cast<double>(chunks[i].len); };
  std::ranges::stable_sort(order, [&](std::size_t a, std::size_t b) {
    return greatest ? density(a) > density(b) : density(a) < density(b);
  });
  if (order.size() > kSwapCandidates) order.resize(kSwapCandidates);
  return order;
}

}  // namespace

Placement::Placement(const RowCosts& costs, std::int64_t tokens, int ranks, std::int64_t chunk_size)
    : costs_(costs), left_(tokens), ranks_(static_cast<std::size_t>(ranks)) {
  // Around the mean: floor(mean) >= L and ceil(mean) <= U for every chunk_size >= 1.
  low_ = std::max<std::int64_t>(0, tokens / ranks - (chunk_size - 1) / 2);
  high_ = low_ + chunk_size;
  lacking_ = low_ * ranks;
}

std::int64_t Placement::room(const Rank& rank) const {
  const std::int64_t spare = left_ - lacking_;
  return std::min(high_ - rank.tokens, std::max<std::int64_t>(0, low_ - rank.tokens) + spare);
}

int Placement::least_loaded(std::int64_t len) const {
  int best = -1;
  for (std::size_t i = 0; i < ranks_.size(); ++i) {
    if (room(ranks_[i]) < len) continue;
    if (best < 0) {
      best = static_cast<int>(i);
      continue;
    }
    const Rank& leader = ranks_[static_cast<std::size_t>(best)];
    if (std::tie(ranks_[i].cost, ranks_[i].tokens) < std::tie(leader.cost, leader.tokens)) best = static_cast<int>(i);
  }
  return best;
}

void Placement::add(Rank& rank, std::vector<Piece>& list, const Piece& piece) {
  lacking_ -= std::min(piece.len, std::max<std::int64_t>(0, low_ - rank.tokens));
  left_ -= piece.len;
  rank.tokens += piece.len;
  rank.cost += piece.cost;
  total_ += piece.cost;
  list.push_back(piece);
}

int Placement::place_whole(const Piece& piece, int wanted) {
  const bool fits = wanted >= 0 && room(ranks_[static_cast<std::size_t>(wanted)]) >= piece.len;
  const int rank = fits ? wanted : least_loaded(piece.len);
  if (rank >= 0) {
    Rank& home = ranks_[static_cast<std::size_t>(rank)];
    add(home, home.whole, piece);
  }
  return rank;
}

void Placement::place_chunk(Piece piece) {
  while (piece.len > 0) {
    const int rank = least_loaded(piece.len);
    Rank& home = rank >= 0 ? ranks_[static_cast<std::size_t>(rank)]
                           : *std::ranges::max_element(ranks_, {}, [this](const Rank& r) { return room(r); });
    const std::int64_t len = std::min(piece.len, room(home));
    add(home, home.chunks, {piece.begin, len, costs_.of(piece.begin, len)});
    piece = {piece.begin + len, piece.len - len, 0};
  }
}

/// The swap of these two chunks that moves `wanted` pairs, or as near to it as there are tokens.
Placement::Swap Placement::fit_swap(const Piece& from, const Piece& to, double wanted) const {
  const auto moved = [&](std::int64_t len) {
    return costs_.of(from.begin + from.len - len, len) - costs_.of(to.begin, len);
  };
  std::int64_t below = 0, above = std::min(from.len, to.len);
  if (moved(above) > wanted) {
    while (above - below > 1) {  // moved(below) <= wanted < moved(above)
      const std::int64_t middle = below + (above - below) / 2;
      (moved(middle) <= wanted ? below : above) = middle;
    }
  }
  const bool nearer = std::abs(moved(below) - wanted) < std::abs(moved(above) - wanted);
  const std::int64_t len = nearer ? below : above;
  return {0, 0, len, moved(len)};
}

Placement::Swap Placement::best_swap(const Rank& from, const Rank& to, double wanted) const {
  Swap best;
  const auto givers = extremes(from.chunks, true), takers = extremes(to.chunks, false);
  for (const std::size_t giver : givers) {
    for (const std::size_t taker : takers) {
      Swap swap = fit_swap(from.chunks[giver], to.chunks[taker], wanted);
      swap.from = giver;
      swap.to = taker;
      if (std::abs(swap.moved - wanted) < std::abs(best.moved - wanted)) best = swap;
    }
  }
  return best;
}

void Placement::apply(Rank& from, Rank& to, const Swap& swap) {
  Piece& giver = from.chunks[swap.from];
  Piece& taker = to.chunks[swap.to];
  const auto piece = [this](std::int64_t begin, std::int64_t len) { return Piece{begin, len, costs_.of(begin, len)}; };
  const Piece given = piece(giver.begin + giver.len - swap.len, swap.len), taken = piece(taker.begin, swap.len);
  giver = piece(giver.begin, giver.len - swap.len);
  taker = piece(taker.begin + swap.len, taker.len - swap.len);
  from.chunks.push_back(taken);
  to.chunks.push_back(given);
  for (Rank* rank : {&from, &to}) std::erase_if(rank->chunks, [](const Piece& p) { return p.len == 0; });
  from.cost += taken.cost - given.cost;
  to.cost += given.cost - taken.cost;
}

void Placement::even_out(double goal) {
  const auto by_cost = [](const Rank& a, const Rank& b) { return a.cost < b.cost; };
  // A round levels one pair of ranks; a few rounds a rank are as good as any number.
  for (std::size_t round = 0; round < 4 * ranks_.size() && imbalance() > goal; ++round) {
    Rank& costliest = *std::ranges::max_element(ranks_, by_cost);
    Rank& cheapest = *std::ranges::min_element(ranks_, by_cost);
    const double wanted = (costliest.cost - cheapest.cost) / 2;
    const Swap swap = best_swap(costliest, cheapest, wanted);
    if (swap.moved < wanted / 100) return;
    apply(costliest, cheapest, swap);
  }
}

double Placement::imbalance() const {
  if (total_ == 0) return 1;
  double most = 0;
  for (const Rank& rank : ranks_) most = std::max(most, rank.cost);
  return most * static_cast<double>(ranks_.size()) / total_;
}

Runs Placement::runs() const {
  Runs runs;
  for (const Rank& rank : ranks_) {
    std::vector<Piece> pieces = rank.whole;
    pieces.insert(pieces.end(), rank.chunks.begin(), rank.chunks.end());
    std::ranges::sort(pieces, {}, &Piece::begin);
    auto& list = runs.emplace_back();
    for (const Piece& piece : pieces) append_run(list, piece.begin, piece.len);
  }
  return runs;
}

}  // namespace rotunda
