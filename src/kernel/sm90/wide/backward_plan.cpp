#include "kernel/sm90/wide/backward_plan.hpp"

#include <algorithm>
#include <cstring>
#include <functional>
#include <queue>
#include <utility>

#include "base/fail.hpp"
#include "kernel/sm90/wide/backward_lists.hpp"

namespace rotunda::sm90::wide {
namespace {

constexpr std::int64_t kPoolTileBytes = 2 * kPoolTileElements;
constexpr std::int64_t kAlignment = 1024;

/// Copies of a head's tensors take at most one part in so many of the workspace.
constexpr std::int64_t kPackedShare = 3;

/// What the begin and end of a gradient tile cost, in steps of its sum.
constexpr int kItemSteps = 3;

std::int64_t align(std::int64_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

std::int64_t quotient_up(std::int64_t a, std::int64_t b) {
  return (a + b - 1) / b;
}

/// An item with what it costs.
struct WeighedItem {
  GradientItem item;
  std::int64_t weight;
};

/// Deals items out to teams, each to the one that has least so far.
class Dealer {
 public:
  explicit Dealer(int teams) : hands_(static_cast<std::size_t>(teams)) {
    for (int t = 0; t < teams; ++t) loads_.push({0, t});
  }

  /// Heaviest first.
  void deal(std::vector<WeighedItem>& items) {
    std::stable_sort(items.begin(), items.end(),
                     [](const WeighedItem& a, const WeighedItem& b) { return a.weight > b.weight; });
    for (const WeighedItem& one : items) {
      const auto [load, team] = loads_.top();
      loads_.pop();
      hands_[static_cast<std::size_t>(team)].push_back(one.item);
      loads_.push({load + one.weight, team});
    }
    items.clear();
  }

  /// All items by team, and where each team's begin.
  [[nodiscard]] std::pair<std::vector<GradientItem>, std::vector<std::int32_t>> hands() const {
    std::vector<GradientItem> all;
    std::vector<std::int32_t> first{0};
    for (const auto& hand : hands_) {
      all.insert(all.end(), hand.begin(), hand.end());
      first.push_back(static_cast<std::int32_t>(all.size()));
    }
    return {std::move(all), std::move(first)};
  }

 private:
  using Load = std::pair<std::int64_t, int>;  // and the team
  std::priority_queue<Load, std::vector<Load>, std::greater<>> loads_;
  std::vector<std::vector<GradientItem>> hands_;
};

class Planner {
 public:
  explicit Planner(const BackwardShape& shape) : shape_(shape), tiles_(shape.slices) {}

  BackwardPlan make() {
    choose_chunks();
    const std::vector<CellUse> use = use_of_cells(tiles_, ranges_);
    std::vector<RangeLists> lists;
    for (int range = 0; range < static_cast<int>(ranges_.size()); ++range) {
      lists.push_back(make_lists(tiles_, {ranges_, use, range, shape_.init_dq, shape_.init_dkv}));
    }
    for (int kv = 0; kv < shape_.heads_kv && !tiles_.rows.empty(); kv += kv_count_) {
      const int count = std::min(kv_count_, shape_.heads_kv - kv);
      if (kv == 0 || count < kv_count_) {
        for (const RangeLists& one : lists) store(one, count);
      }
      const int first = static_cast<int>(plan_.offsets.size() - lists.size());
      for (int range = 0; range < static_cast<int>(lists.size()); ++range) {
        plan_.chunks.push_back({first + range, kv});
      }
    }
    add_free_rows();
    lay_out();
    return std::move(plan_);
  }

 private:
  void choose_chunks() {
    std::int64_t tiles = 0, longest = 0;
    for (const TileRow& row : tiles_.rows) {
      tiles += row.tiles();
      longest = std::max<std::int64_t>(longest, row.tiles());
    }
    std::int64_t bytes = shape_.pool_bytes;
    if (bytes == 0) bytes = std::max(kPoolBytes, kPoolBytesPerKey * shape_.rows_k);
    const std::int64_t copies = packed_bytes();
    plan_.packs = copies > 0 && copies <= bytes / kPackedShare;
    const std::int64_t packed = plan_.packs ? copies : 0;
    const std::int64_t of_kv_head = tiles * shape_.group * 2 * kPoolTileBytes + packed;
    kv_count_ = 1;
    if (of_kv_head <= bytes) {
      const std::int64_t fit = std::min<std::int64_t>(shape_.heads_kv, bytes / std::max<std::int64_t>(of_kv_head, 1));
      const std::int64_t chunks = quotient_up(shape_.heads_kv, std::max<std::int64_t>(fit, 1));
      kv_count_ = static_cast<int>(quotient_up(shape_.heads_kv, std::max<std::int64_t>(chunks, 1)));
      ranges_ = {{0, tiles_.rows.size()}};
      return;
    }
    if (shape_.narrow_dkv) plan_.scratch_cells = tiles_.cells;
    const std::int64_t capacity =
        (bytes - packed - scratch_bytes(shape_.d) - scratch_bytes(shape_.d_v)) / (2 * kPoolTileBytes);
    cut_ranges(std::max(capacity / shape_.group, longest), tiles);
  }

  /// Ranges of at most `capacity` tiles a head, about equally many each.
  void cut_ranges(std::int64_t capacity, std::int64_t tiles) {
    const std::int64_t count = quotient_up(tiles, capacity);
    std::int64_t done = 0, here = 0;
    ranges_ = {{0, 0}};
    for (std::size_t i = 0; i < tiles_.rows.size(); ++i) {
      const std::int64_t next = tiles_.rows[i].tiles();
      const std::int64_t target = tiles * static_cast<std::int64_t>(ranges_.size()) / count;
      if (here > 0 && (here + next > capacity || done + next / 2 >= target)) {
        ranges_.push_back({i, i});
        here = 0;
      }
      ranges_.back().end = i + 1;
      here += next;
      done += next;
    }
  }

  /// Of one KV head's q, k, dout and v; 0 where none needs to be packed.
  [[nodiscard]] std::int64_t packed_bytes() const {
    if (!should_pack(shape_.d) && !should_pack(shape_.d_v)) return 0;
    return packed_bytes_q(1, shape_.d) + packed_bytes_k(1, shape_.d) + packed_bytes_q(1, shape_.d_v) +
           packed_bytes_k(1, shape_.d_v);
  }
  /// Of q or dout, and of k or v, of so many KV heads.
  [[nodiscard]] std::int64_t packed_bytes_q(int kv_count, int dim) const {
    return align(shape_.batch * shape_.rows_q * kv_count * shape_.group * packed_columns(dim) * 2);
  }
  [[nodiscard]] std::int64_t packed_bytes_k(int kv_count, int dim) const {
    return align(shape_.batch * shape_.rows_k * kv_count * packed_columns(dim) * 2);
  }

  /// Partial sums of dk or dv of one KV head.
  [[nodiscard]] std::int64_t scratch_bytes(int dim) const {
    return align(std::int64_t{plan_.scratch_cells} * kGradientRows * dim * static_cast<std::int64_t>(sizeof(float)));
  }

  template <class T>
  std::int64_t append(const std::vector<T>& list) {
    const std::size_t at = (plan_.lists.size() + 15) / 16 * 16;
    plan_.lists.resize(at + list.size() * sizeof(T));
    if (!list.empty()) std::memcpy(plan_.lists.data() + at, list.data(), list.size() * sizeof(T));
    return static_cast<std::int64_t>(at);
  }

  void store(const RangeLists& lists, int kv_count) {
    std::vector<GradientCell> cells = lists.dkv_cells;
    cells.insert(cells.end(), lists.dq_cells.begin(), lists.dq_cells.end());
    auto [items, first] = deal_items(lists, kv_count);
    plan_.offsets.push_back({.score_cells = append(lists.score_cells),
                             .bands = append(lists.bands),
                             .gradient_cells = append(cells),
                             .items = append(items),
                             .item_first = append(first),
                             .runs = append(lists.runs),
                             .row_tiles = append(lists.row_tiles),
                             .row_masks = append(lists.row_masks),
                             .score_count = static_cast<std::int32_t>(lists.score_cells.size()),
                             .tiles_per_head = lists.tiles_per_head,
                             .kv_count = kv_count});
    plan_.pool_tiles = std::max(plan_.pool_tiles, std::int64_t{lists.tiles_per_head} * kv_count * shape_.group);
  }

  /// A few KV heads at a time, so that what teams read at once fits L2, and enough for an even end.
  [[nodiscard]] std::pair<std::vector<GradientItem>, std::vector<std::int32_t>> deal_items(const RangeLists& lists,
                                                                                           int kv_count) const {
    constexpr std::size_t kRounds = 3;
    const int teams = teams_of(shape_.workers);
    Dealer dealer(teams);
    std::vector<WeighedItem> items;
    for (int kv = 0; kv < kv_count; ++kv) {
      add_items(lists, kv, items);
      const bool enough = items.size() >= kRounds * static_cast<std::size_t>(teams);
      if (enough || kv + 1 == kv_count) dealer.deal(items);
    }
    return dealer.hands();
  }

  void add_items(const RangeLists& lists, int kv, std::vector<WeighedItem>& items) const {
    const auto add = [&](std::size_t cell, int head, Gradient gradient, std::int64_t steps) {
      items.push_back(
          {{static_cast<std::int32_t>(cell), static_cast<std::uint16_t>(head), gradient}, steps + kItemSteps});
    };
    for (std::size_t i = 0; i < lists.dkv_cells.size(); ++i) {
      const std::int64_t steps = std::int64_t{lists.dkv_cells[i].steps} * shape_.group;
      add(i, kv, Gradient::dk, steps);
      add(i, kv, Gradient::dv, steps);
    }
    for (int head = kv * shape_.group; head < (kv + 1) * shape_.group; ++head) {
      for (std::size_t i = 0; i < lists.dq_cells.size(); ++i) {
        add(lists.dkv_cells.size() + i, head, Gradient::dq, lists.dq_cells[i].steps);
      }
    }
  }

  void add_free_rows() {
    std::vector<RowSpan> q, k;
    if (shape_.init_dq) q = rows_without(tiles_.components, shape_.batch, shape_.rows_q, Side::query);
    if (shape_.init_dkv) k = rows_without(tiles_.components, shape_.batch, shape_.rows_k, Side::key);
    plan_.free_q_count = static_cast<std::int64_t>(q.size());
    plan_.free_k_count = static_cast<std::int64_t>(k.size());
    plan_.free_q = append(q);
    plan_.free_k = append(k);
  }

  void lay_out() {
    plan_.lists.resize(static_cast<std::size_t>(align(static_cast<std::int64_t>(plan_.lists.size()))));
    plan_.q_packed = static_cast<std::int64_t>(plan_.lists.size());
    const int packed = plan_.packs ? kv_count_ : 0;
    plan_.k_packed = plan_.q_packed + packed_bytes_q(packed, shape_.d);
    plan_.dout_packed = plan_.k_packed + packed_bytes_k(packed, shape_.d);
    plan_.v_packed = plan_.dout_packed + packed_bytes_q(packed, shape_.d_v);
    plan_.p_offset = plan_.v_packed + packed_bytes_k(packed, shape_.d_v);
    plan_.ds_offset = plan_.p_offset + plan_.pool_tiles * kPoolTileBytes;
    plan_.dk_scratch = plan_.ds_offset + plan_.pool_tiles * kPoolTileBytes;
    plan_.dv_scratch = plan_.dk_scratch + scratch_bytes(shape_.d);
    plan_.workspace_bytes = plan_.dv_scratch + scratch_bytes(shape_.d_v);
  }

  const BackwardShape& shape_;
  const CallTiles tiles_;
  int kv_count_ = 1;
  std::vector<RowRange> ranges_;
  BackwardPlan plan_;
};

}  // namespace

int gradient_columns(int d, int d_v) {
  for (const int columns : {144, 160, 192, 224}) {
    if (2 * columns >= std::max(d, d_v)) return columns;
  }
  return 256;
}

int second_gradient_column(int d, int d_v) {
  constexpr int kShift = 8;  // of rows that begin in the middle of a sector, where they are not packed
  const int columns = gradient_columns(d, d_v), line = columns / kPackedColumns * kPackedColumns;
  return std::max(d, d_v) + kShift <= line + columns ? line : columns;
}

ChunkLists ChunkOffsets::at(const std::byte* base) const {
  const auto list = [&]<class T>(const T*, std::int64_t offset) { return reinterpret_cast<const T*>(base + offset); };
  return {.score_cells = list(static_cast<const ScoreCell*>(nullptr), score_cells),
          .bands = list(static_cast<const TileBand*>(nullptr), bands),
          .gradient_cells = list(static_cast<const GradientCell*>(nullptr), gradient_cells),
          .items = list(static_cast<const GradientItem*>(nullptr), items),
          .item_first = list(static_cast<const std::int32_t*>(nullptr), item_first),
          .runs = list(static_cast<const Run*>(nullptr), runs),
          .row_tiles = list(static_cast<const std::int32_t*>(nullptr), row_tiles),
          .row_masks = list(static_cast<const std::uint64_t*>(nullptr), row_masks),
          .score_count = score_count,
          .tiles_per_head = tiles_per_head};
}

BackwardPlan plan_backward(const BackwardShape& shape) {
  ROTUNDA_CHECK(shape.rows_q <= INT32_MAX && shape.rows_k <= INT32_MAX && shape.batch <= INT32_MAX);
  ROTUNDA_CHECK(shape.heads_kv * shape.group <= UINT16_MAX && shape.workers > 0);
  return Planner(shape).make();
}

}  // namespace rotunda::sm90::wide
