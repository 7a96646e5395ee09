#include "shard/placement.hpp"

#include <algorithm>
#include <cmath>
#include <tuple>

namespace rotunda {
namespace {

/// even_out looks at this many chunks a rank: more are so small that placing them has evened out already.
constexpr std::size_t kCandidates = 32;

/// Indices of the chunks of the greatest (or least) cost a token.
std::vector<std::size_t> extremes(const std::vector<Piece>& chunks, bool greatest) {
  std::vector<std::size_t> order(chunks.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  const auto density = [&](std::size_t i) { return chunks[i].cost / static_cast<double>(chunks[i].len); };
  std::ranges::stable_sort(order, [&](std::size_t a, std::size_t b) {
    return greatest ? density(a) > density(b) : density(a) < density(b);
  });
  if (order.size() > kCandidates) order.resize(kCandidates);
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

/// The transfer between these chunks with the length that moves `wanted` pairs, or as near to it as can be.
Placement::Transfer Placement::fit(Transfer transfer, const Rank& from, const Rank& to, double wanted) const {
  const Piece& giver = from.chunks[transfer.from];
  const auto moved = [&](std::int64_t len) {
    const double given = costs_.of(giver.begin + giver.len - len, len);
    return transfer.exchange ? given - costs_.of(to.chunks[transfer.to].begin, len) : given;
  };
  const std::int64_t most =
      transfer.exchange ? to.chunks[transfer.to].len : std::min(from.tokens - low_, high_ - to.tokens);
  std::int64_t below = 0, above = std::min(giver.len, most);
  if (moved(above) > wanted) {
    while (above - below > 1) {  // moved(below) <= wanted < moved(above)
      const std::int64_t middle = below + (above - below) / 2;
      (moved(middle) <= wanted ? below : above) = middle;
    }
  }
  const bool nearer = std::abs(moved(below) - wanted) < std::abs(moved(above) - wanted);
  transfer.len = nearer ? below : above;
  transfer.moved = moved(transfer.len);
  return transfer;
}

Placement::Transfer Placement::best_transfer(const Rank& from, const Rank& to, double wanted) const {
  Transfer best;
  const auto consider = [&](const Transfer& candidate) {
    const Transfer fitted = fit(candidate, from, to, wanted);
    if (std::abs(fitted.moved - wanted) < std::abs(best.moved - wanted)) best = fitted;
  };
  const auto givers = extremes(from.chunks, true), takers = extremes(to.chunks, false);
  for (const std::size_t giver : givers) {
    consider({giver, 0, 0, false, 0});
    for (const std::size_t taker : takers) consider({giver, taker, 0, true, 0});
  }
  return best;
}

void Placement::apply(Rank& from, Rank& to, const Transfer& transfer) {
  // Takes `len` tokens off the start or the end of a chunk.
  const auto take = [this](Rank& rank, std::size_t index, std::int64_t len, bool at_end) {
    Piece& chunk = rank.chunks[index];
    const std::int64_t rest = chunk.len - len;
    const std::int64_t begin = at_end ? chunk.begin + rest : chunk.begin;
    const Piece taken{begin, len, costs_.of(begin, len)};
    chunk = {at_end ? chunk.begin : chunk.begin + len, rest, chunk.cost - taken.cost};
    if (rest == 0) rank.chunks.erase(rank.chunks.begin() + static_cast<std::ptrdiff_t>(index));
    rank.tokens -= len;
    rank.cost -= taken.cost;
    return taken;
  };
  const auto give = [](Rank& rank, const Piece& piece) {
    rank.tokens += piece.len;
    rank.cost += piece.cost;
    rank.chunks.push_back(piece);
  };
  const Piece there = take(from, transfer.from, transfer.len, true);
  if (transfer.exchange) give(from, take(to, transfer.to, transfer.len, false));
  give(to, there);
}

void Placement::even_out(double goal) {
  const auto by_cost = [](const Rank& a, const Rank& b) { return a.cost < b.cost; };
  // A round levels one pair of ranks; a few rounds a rank are as good as any number.
  for (std::size_t round = 0; round < 4 * ranks_.size() && imbalance() > goal; ++round) {
    Rank& costliest = *std::ranges::max_element(ranks_, by_cost);
    Rank& cheapest = *std::ranges::min_element(ranks_, by_cost);
    const double wanted = (costliest.cost - cheapest.cost) / 2;
    const Transfer transfer = best_transfer(costliest, cheapest, wanted);
    if (transfer.moved < wanted / 100) return;
    apply(costliest, cheapest, transfer);
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
