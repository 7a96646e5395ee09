#include "kernel/fa4/tables.hpp"

#include <algorithm>

namespace rotunda::fa4 {
namespace {

constexpr std::int64_t kWidest = std::int64_t{1} << 29;  // a bound that bounds nothing; sums of two fit 32 bits

/// Kernels mask every tile that a bound cuts: bounds that cut nothing are taken away.
std::int64_t left_of(const Piece& p) {
  return p.low <= 1 - p.q_len ? kWidest : std::max(-kWidest, (p.k_len - p.q_len) - p.low);
}
std::int64_t right_of(const Piece& p) {
  return p.high >= p.k_len - 1 ? kWidest : std::max(-kWidest, p.high - (p.k_len - p.q_len));
}

/// Counts of the numbers in each table, in their order.
struct Extents {
  explicit Extents(std::int64_t n) : first(n + 1), used_q(5 * n), used_k(5 * n + 4), before(n + 1) {}
  [[nodiscard]] std::int64_t total() const { return 2 * first + used_q + used_k + before; }
  std::int64_t first, used_q, used_k, before;
};

}  // namespace

LaunchTables Tables::at(std::int32_t* at) const {
  const Extents extents(pieces);
  const auto take = [&](std::int64_t count) {
    Ints table{at, {static_cast<std::int32_t>(count)}};
    at += count;
    return table;
  };
  LaunchTables result;
  result.first_q = take(extents.first);
  result.first_k = take(extents.first);
  result.used_q = take(extents.used_q);
  result.used_k = take(extents.used_k);
  result.blocks_before = take(extents.before);
  result.block_owner = take(blocks);
  result.grid_rows = tile * blocks - (tile - 1) * pieces;  // FA4 allows each piece the rest of a tile
  return result;
}

Tables make_tables(const Launch& launch, const LaunchFrame& frame) {
  Tables tables;
  tables.pieces = static_cast<std::int32_t>(launch.size());
  tables.tile = frame.tile;
  tables.values.reserve(static_cast<std::size_t>(Extents(tables.pieces).total()));
  const auto column = [&](auto&& value) {
    for (const Piece& piece : launch) tables.values.push_back(static_cast<std::int32_t>(value(piece)));
  };
  const auto add = [&](std::int64_t value) { tables.values.push_back(static_cast<std::int32_t>(value)); };
  column([&](const Piece& p) { return p.batch * frame.q.rows + p.q_begin; });
  add(0);
  column([&](const Piece& p) { return p.batch * frame.k.rows + p.k_begin; });
  add(0);
  column([](const Piece& p) { return p.q_len; });
  column([](const Piece& p) { return p.q_sum; });
  column([](const Piece& p) { return p.batch; });
  column([](const Piece& p) { return p.q_begin; });
  column([&](const Piece& p) { return p.batch * frame.q.heads; });
  column([](const Piece& p) { return p.k_len; });
  column([](const Piece& p) { return p.k_sum; });
  column(left_of);
  column(right_of);
  column([&](const Piece& p) { return p.batch * frame.k.heads; });
  for (const int value : {frame.heads.group, frame.heads.q_first, frame.heads.kv_first, frame.flags}) add(value);
  std::int64_t blocks = 0;
  for (const Piece& piece : launch) {
    add(blocks);
    blocks += tiles_of(piece, frame.blocks_of, frame.tile);
  }
  add(blocks);
  tables.blocks = static_cast<std::int32_t>(blocks);
  return tables;
}

std::optional<OneSlice> as_one_slice(const Launch& launch, const LaunchFrame& frame, std::int64_t batches) {
  if (launch.empty() || static_cast<std::int64_t>(launch.size()) != batches) return std::nullopt;
  const Piece& first = launch.front();
  if (first.q_len == 0 || first.k_len == 0 || left_of(first) != kWidest) return std::nullopt;
  const Piece& second = launch[batches > 1 ? 1 : 0];
  const std::int64_t q_sum_step = second.q_sum - first.q_sum, k_sum_step = second.k_sum - first.k_sum;
  for (std::int64_t batch = 0; batch < batches; ++batch) {
    Piece expected = first;
    expected.batch = batch;
    expected.q_sum += batch * q_sum_step;
    expected.k_sum += batch * k_sum_step;
    if (launch[static_cast<std::size_t>(batch)] != expected) return std::nullopt;
  }
  const auto number = [](std::int64_t value) { return static_cast<std::int32_t>(value); };
  return OneSlice{.batches = number(batches),
                  .blocks = number(tiles_of(first, frame.blocks_of, frame.tile)),
                  .rows_q = number(first.q_len),
                  .rows_k = number(first.k_len),
                  .right = number(right_of(first)),
                  .q_row = number(first.q_begin),
                  .k_row = number(first.k_begin),
                  .q_sum = number(first.q_sum),
                  .q_sum_step = number(q_sum_step),
                  .k_sum = number(first.k_sum),
                  .k_sum_step = number(k_sum_step),
                  .group = frame.heads.group,
                  .q_first = frame.heads.q_first,
                  .kv_first = frame.heads.kv_first,
                  .flags = frame.flags};
}

std::int64_t table_bytes(const Launch& launch, Side side, int tile) {
  std::int64_t blocks = 0;
  for (const Piece& piece : launch) blocks += tiles_of(piece, side, tile);
  const auto pieces = static_cast<std::int64_t>(launch.size());
  return (Extents(pieces).total() + blocks) * static_cast<std::int64_t>(sizeof(std::int32_t));
}

std::vector<std::int32_t> segment_table(std::span<const Segment> segments, std::int64_t rows) {
  std::vector<std::int32_t> values;
  values.reserve(4 * segments.size() + 1);
  const auto column = [&](std::int64_t Segment::*field) {
    for (const Segment& segment : segments) values.push_back(static_cast<std::int32_t>(segment.*field));
  };
  column(&Segment::batch);
  column(&Segment::begin);
  column(&Segment::len);
  column(&Segment::sum);
  values.push_back(static_cast<std::int32_t>(rows));
  return values;
}

}  // namespace rotunda::fa4
