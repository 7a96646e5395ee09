#include "cli/picture.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "cli/simulate.hpp"
#include "cli/table.hpp"

namespace rotunda::cli {
namespace {

constexpr int kColumns = 64;
constexpr int kRows = 24;

char digit(int rank) {
  constexpr char digits[] = "0123456789abcdefghijklmnopqrstuvwxyz";
  if (rank < 0) return '*';
  return rank < 36 ? digits[rank] : '+';
}

std::string strip(const TokenMap& map) {
  std::string text;
  for (const int rank : owners(map, static_cast<int>(std::min<std::int64_t>(kColumns, map.tokens()))))
    text += digit(rank);
  return text;
}

/// Calls body(cell) for every cell that holds a token of the run, in a time that grows with the cells alone.
template <class Body>
void for_cells(const Run& run, const TokenMap& map, int cells, Body&& body) {
  for (std::int64_t i = 0; i < run.len;) {
    const int cell = cell_of(run.token + i * map.stride(), map.tokens(), cells);
    body(cell);
    std::int64_t below = i, above = run.len;  // the last of the cell, and one beyond it
    while (above - below > 1) {
      const std::int64_t middle = below + (above - below) / 2;
      (cell_of(run.token + middle * map.stride(), map.tokens(), cells) == cell ? below : above) = middle;
    }
    i = above;
  }
}

/// Ranges of a rank's tokens; the first few and how many more.
std::string ranges(const TokenMap& map, int rank) {
  constexpr std::size_t most = 6;
  const auto& runs = map.runs(rank);
  std::string text;
  for (std::size_t i = 0; i < std::min(most, runs.size()); ++i) {
    const Run& run = runs[i];
    const std::int64_t last = run.token + (run.len - 1) * map.stride();
    text += fmt::format("{}{}..{}", i == 0 ? "" : ", ", run.token, last);
    if (map.stride() != 1) text += fmt::format(" by {}", map.stride());
  }
  if (runs.size() > most) text += fmt::format(" and {} ranges more", runs.size() - most);
  return text;
}

std::string side(const char* name, const TokenMap& map) {
  std::string text = fmt::format("{} 0 to {}\n  {}\n", name, grouped(map.tokens() - 1), strip(map));
  if (map.tokens() == 0) text = fmt::format("{}: none\n", name);
  for (int rank = 0; rank < map.ranks(); ++rank) {
    text += fmt::format("  rank {}: {} rows{}{}\n", rank, grouped(map.rows(rank)),
                        map.rows(rank) == 0 ? "" : ", tokens ", ranges(map, rank));
  }
  return text;
}

}  // namespace

std::vector<int> owners(const TokenMap& map, int cells) {
  std::vector<int> owner(static_cast<std::size_t>(cells), -2);
  for (int rank = 0; rank < map.ranks(); ++rank) {
    for (const Run& run : map.runs(rank)) {
      for_cells(run, map, cells, [&](int index) {
        int& cell = owner[static_cast<std::size_t>(index)];
        cell = cell == -2 || cell == rank ? rank : -1;
      });
    }
  }
  return owner;
}

std::string shard_picture(const Problem& problem, const Shard& shard) {
  const bool same = shard.q == shard.k;
  std::string text = side(same ? "tokens" : "query tokens", shard.q);
  if (!same) text += side("key tokens", shard.k);
  const auto documents = document_offsets(problem, Side::query);
  if (documents.size() > 2) {
    text += fmt::format("{} documents, beginning at {}", documents.size() - 1, documents[0]);
    for (std::size_t i = 1; i + 1 < documents.size() && i < 12; ++i) text += fmt::format(", {}", documents[i]);
    text += documents.size() > 13 ? ", …\n" : "\n";
  }
  return text;
}

std::string mask_picture(const Problem& problem, const Shard& shard) {
  if (problem.s_q == 0 || problem.s_k == 0) return "";
  Simulation axes;
  axes.rows = static_cast<int>(std::min<std::int64_t>(kRows, problem.s_q));
  axes.columns = static_cast<int>(std::min<std::int64_t>(kColumns, problem.s_k));
  const auto slices = mask_slices(problem);
  axes.batch = slices.empty() ? 0 : slices.front().batch;
  const auto visible = mask_cells(problem, axes);
  const auto rank = owners(shard.q, axes.rows);
  std::string text = "queries down, keys across; a visible pair shows the rank that holds its query\n";
  for (int row = 0; row < axes.rows; ++row) {
    text += "  ";
    for (int column = 0; column < axes.columns; ++column) {
      const bool seen = visible[axes.cell(row, column)] != 0;
      text += seen ? digit(rank[static_cast<std::size_t>(row)]) : '.';
    }
    text += '\n';
  }
  return text;
}

}  // namespace rotunda::cli
