// The plan of the wide backward, carried out on the host on matrices of one column: every visible pair counts once in
// each gradient, every row is written, and nothing that no slice has is read.
#include "kernel/sm90/wide/backward_plan.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <set>

#include "kernel/sm90/sm90_kernel.hpp"
#include "problem/band.hpp"

namespace rotunda::sm90::wide {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr std::int64_t kAnyPool = 1;  ///< as little as the longest query tile allows

struct Call {
  BackwardShape shape;
  int q_first = 0, heads_q = 1;
};

/// A made-up score of a pair, the same for P and dS but for the sign.
double score(int head, std::int64_t row, std::int64_t key) {
  return static_cast<double>((head * 7 + row * 3 + key * 5) % 11 + 1);
}
double operand(int kind, int head, std::int64_t row) {
  return static_cast<double>((kind * 13 + head * 5 + row * 7) % 17 - 8);
}

/// Gradients by batch, head and row; NaN where nothing has been written.
class Sums {
 public:
  Sums(std::int64_t batch, int heads, std::int64_t rows, double start)
      : heads_(heads), rows_(rows), values_(static_cast<std::size_t>(batch * heads * rows), start) {}
  double& at(std::int64_t batch, int head, std::int64_t row) {
    return values_.at(static_cast<std::size_t>((batch * heads_ + head) * rows_ + row));
  }
  [[nodiscard]] const std::vector<double>& values() const { return values_; }

 private:
  int heads_;
  std::int64_t rows_;
  std::vector<double> values_;
};

struct Gradients {
  Sums dq, dk, dv;

  explicit Gradients(const Call& call)
      : dq(call.shape.batch, call.heads_q, call.shape.rows_q, call.shape.init_dq ? kNaN : 1000),
        dk(call.shape.batch, call.shape.heads_kv, call.shape.rows_k, call.shape.init_dkv ? kNaN : 2000),
        dv(call.shape.batch, call.shape.heads_kv, call.shape.rows_k, call.shape.init_dkv ? kNaN : 3000) {}
};

Gradients expected(const Call& call) {
  Gradients all(call);
  const auto begin = [](Sums& sums, bool init, double before) {
    for (const double& value : sums.values()) const_cast<double&>(value) = init ? 0 : before;
  };
  begin(all.dq, call.shape.init_dq, 1000);
  begin(all.dk, call.shape.init_dkv, 2000);
  begin(all.dv, call.shape.init_dkv, 3000);
  for (const Slice& slice : call.shape.slices) {
    const Band b = band(slice);
    for (int head = 0; head < call.heads_q; ++head) {
      const int kv = (call.q_first + head) / call.shape.group;
      for (std::int64_t i = 0; i < slice.q_len; ++i) {
        for (std::int64_t j = std::max<std::int64_t>(0, i + b.low); j < std::min(slice.k_len, i + b.high + 1); ++j) {
          const std::int64_t row = slice.q_begin + i, key = slice.k_begin + j;
          const double p = score(head, row, key);
          all.dq.at(slice.batch, head, row) -= p * operand(0, kv, key);
          all.dk.at(slice.batch, kv, key) -= p * operand(1, head, row);
          all.dv.at(slice.batch, kv, key) += p * operand(2, head, row);
        }
      }
    }
  }
  return all;
}

/// Carries out a plan as the kernels do.
class Interpreter {
 public:
  Interpreter(const Call& call, const BackwardPlan& plan)
      : call_(call), plan_(plan), got_(call), pool_(static_cast<std::size_t>(plan.pool_tiles) * kPoolTileElements) {
    for (const Slice& slice : call.shape.slices) {
      const Slice seen = trim(slice);
      for (std::int64_t i = 0; i < seen.q_len; ++i) q_rows_.insert({slice.batch, seen.q_begin + i});
      for (std::int64_t j = 0; j < seen.k_len; ++j) k_rows_.insert({slice.batch, seen.k_begin + j});
    }
  }

  Gradients run() {
    zero(plan_.free_q, plan_.free_q_count, got_.dq);
    zero(plan_.free_k, plan_.free_k_count, got_.dk);
    zero(plan_.free_k, plan_.free_k_count, got_.dv);
    for (const BackwardPlan::Chunk& chunk : plan_.chunks) {
      offsets_ = &plan_.offsets.at(static_cast<std::size_t>(chunk.lists));
      lists_ = offsets_->at(plan_.lists.data());
      kv_first_ = chunk.kv_first;
      q_first_ = chunk.kv_first * call_.shape.group - call_.q_first;
      std::fill(pool_.begin(), pool_.end(), kNaN);
      for (int head = 0; head < offsets_->kv_count * call_.shape.group; ++head) {
        for (int n = 0; n < lists_.score_count && has(head); ++n) write_scores(lists_.score_cells[n], head);
      }
      std::set<std::tuple<int, int, int>> seen;
      for (int i = 0; i < lists_.item_first[teams_of(call_.shape.workers)]; ++i) {
        const GradientItem& item = lists_.items[i];
        EXPECT_TRUE(seen.insert({item.cell, item.head, static_cast<int>(item.gradient)}).second);
        add_up(item, lists_.gradient_cells[item.cell]);
      }
    }
    return got_;
  }

 private:
  [[nodiscard]] bool has(int head) const { return q_first_ + head >= 0 && q_first_ + head < call_.heads_q; }

  void zero(std::int64_t offset, std::int64_t count, Sums& sums) {
    const auto* spans = reinterpret_cast<const RowSpan*>(plan_.lists.data() + offset);
    const bool of_q = &sums == &got_.dq;
    for (std::int64_t n = 0; n < count; ++n) {
      for (std::int64_t i = 0; i < spans[n].len; ++i) {
        for (int head = 0; head < (of_q ? call_.heads_q : call_.shape.heads_kv); ++head) {
          sums.at(spans[n].batch, head, spans[n].begin + i) = 0;
        }
      }
    }
  }

  double& pool(int head, int tile, int row, int key) {
    EXPECT_TRUE(tile >= 0 && tile < lists_.tiles_per_head);
    const std::int64_t at = std::int64_t{head} * lists_.tiles_per_head + tile;
    return pool_.at(
        static_cast<std::size_t>(at * kPoolTileElements + (key / kBlock * kTileRows + row) * kBlock + key % kBlock));
  }

  void write_scores(const ScoreCell& cell, int head) {
    for (int r = 0; r < kTileRows; ++r) {
      for (int k = 0; k < kTileKeys; ++k) {
        bool visible = cell.band_count == 0;
        for (int n = 0; n < cell.band_count; ++n) {
          const TileBand& b = lists_.bands[cell.band_first + n];
          visible |= r >= b.row_begin && r < b.row_end && k >= b.key_begin && k < b.key_end && k - r >= b.low &&
                     k - r <= b.high;
        }
        if ((cell.parts >> (r / 64 * 2 + k / 128) & 1) == 0) {
          EXPECT_FALSE(visible);
          continue;  // stays NaN: nobody may read it
        }
        pool(head, cell.tile, r, k) = visible ? score(q_first_ + head, cell.q_row + r, cell.k_row + k) : 0;
      }
    }
  }

  /// What a step reads of k (kind 0), q (1) or dout (2): NaN for rows that no slice has.
  double read(int kind, int head, std::int64_t batch, std::int64_t row) const {
    const bool known = kind == 0 ? k_rows_.contains({batch, row}) : q_rows_.contains({batch, row});
    return known ? operand(kind, head, row) : kNaN;
  }

  void add_up(const GradientItem& item, const GradientCell& cell) {
    const bool of_q = item.gradient == Gradient::dq;
    const int kind = of_q ? 0 : item.gradient == Gradient::dk ? 1 : 2;
    const int group = call_.shape.group;
    const int begin = of_q ? item.head : item.head * group, end = of_q ? item.head + 1 : (item.head + 1) * group;
    if (of_q && !has(item.head)) return;
    std::vector<double> sums(kGradientRows, 0.0);
    int steps = 0;
    for (int head = begin; head < end; ++head) {
      if (!has(head)) continue;
      for (int n = 0; n < cell.run_count; ++n) {
        const Run& run = lists_.runs[cell.run_first + n];
        EXPECT_TRUE(run.clean < 0 || run.count == 1);
        for (int step = run.first; step < run.first + run.count; ++step)
          add_step(item, cell, {head, step, run.clean, run.halves}, kind, sums);
        steps += head == begin ? run.count : 0;
      }
    }
    EXPECT_TRUE(steps == cell.steps || !has(begin));
    store(item, cell, sums);
  }

  struct Step {
    int head, step, clean, halves;
  };

  void add_step(const GradientItem& item, const GradientCell& cell, const Step& at, int kind,
                std::vector<double>& sums) {
    const bool of_q = kind == 0;
    for (int x = 0; x < kBlock; ++x) {
      const bool kept = at.clean < 0 || (lists_.row_masks[at.clean] >> x & 1) != 0;
      const int head = of_q ? kv_first_ + at.head / call_.shape.group : q_first_ + at.head;
      const double b = kept ? read(kind, head, cell.batch, cell.inner_row + std::int64_t{kBlock} * at.step + x) : 0;
      for (int r = 0; r < kGradientRows; ++r) {
        if ((at.halves >> r / 64 & 1) == 0) continue;
        if (of_q) {
          const int key = at.step % kKeyBlocks * kBlock + x;
          sums[static_cast<std::size_t>(r)] -= pool(at.head, cell.tile + at.step / kKeyBlocks, r, key) * b;
        } else {
          const int tile = lists_.row_tiles[cell.row_tiles + at.step / kRowBlocks] + cell.tile / 2;
          const double p = pool(at.head, tile, at.step % kRowBlocks * kBlock + x, cell.tile % 2 * kGradientRows + r);
          sums[static_cast<std::size_t>(r)] += (item.gradient == Gradient::dv ? p : -p) * b;
        }
      }
    }
  }

  void store(const GradientItem& item, const GradientCell& cell, const std::vector<double>& sums) {
    Sums& to = item.gradient == Gradient::dq ? got_.dq : item.gradient == Gradient::dk ? got_.dk : got_.dv;
    const bool of_q = item.gradient == Gradient::dq;
    const int head = of_q ? q_first_ + item.head : kv_first_ + item.head;
    for (int r = 0; r < cell.rows; ++r) {
      double& value = to.at(cell.batch, head, cell.row + r);
      value = sums[static_cast<std::size_t>(r)] + (cell.load != 0 ? value : 0);
    }
    if (of_q) return;
    // 16-bit sums stay in scratch until the last chunk that adds to them.
    if (plan_.scratch_cells > 0) {
      EXPECT_LT(cell.scratch, plan_.scratch_cells);
    }
    const auto key = std::tuple{head, cell.scratch, item.gradient};
    EXPECT_FALSE(finished_.contains(key)) << "added to after its last chunk";
    if (cell.last != 0) finished_.insert(key);
  }

  const Call& call_;
  const BackwardPlan& plan_;
  Gradients got_;
  std::vector<double> pool_;
  std::set<std::pair<std::int64_t, std::int64_t>> q_rows_, k_rows_;  ///< batch and row, of some slice
  std::set<std::tuple<int, int, Gradient>> finished_;
  const ChunkOffsets* offsets_ = nullptr;
  ChunkLists lists_{};
  int kv_first_ = 0, q_first_ = 0;
};

void check(const Call& call) {
  const BackwardPlan plan = plan_backward(call.shape);
  Gradients got = Interpreter(call, plan).run();
  Gradients want = expected(call);
  EXPECT_EQ(got.dq.values(), want.dq.values());
  EXPECT_EQ(got.dk.values(), want.dk.values());
  EXPECT_EQ(got.dv.values(), want.dv.values());
}

BackwardShape shape_of(std::int64_t rows_q, std::int64_t rows_k, std::vector<Slice> slices) {
  return {.slices = std::move(slices), .rows_q = rows_q, .rows_k = rows_k, .d = 512, .d_v = 512, .workers = 5};
}

Slice causal(std::int64_t begin, std::int64_t len) {
  return {0, begin, len, begin, len, begin, begin, kInfinity, 0};
}

TEST(BackwardPlan, CountsEveryPairOnce) {
  check({shape_of(1, 1, {causal(0, 1)})});
  check({shape_of(300, 300, {causal(0, 300)})});
  check({shape_of(333, 517, {{0, 0, 333, 0, 517, 0, 0}})});
  check({shape_of(333, 517, {{0, 0, 333, 0, 517, 184, 0, kInfinity, 0}})});
  check({shape_of(700, 700, {{0, 0, 700, 0, 700, 0, 0, 130, 0}})});
}

TEST(BackwardPlan, ServesDocumentsAndPadding) {
  Call call{shape_of(500, 500, {causal(3, 60), causal(63, 130), causal(200, 1), causal(210, 280)})};
  check(call);
  call.shape.init_dq = call.shape.init_dkv = false;
  check(call);
  check({shape_of(40, 70, {})});
}

TEST(BackwardPlan, CutsWhatDoesNotFit) {
  Call call{shape_of(900, 700, {{0, 0, 900, 0, 700, 0, 0, 400, 100}})};
  call.shape.pool_bytes = kAnyPool;
  EXPECT_GT(plan_backward(call.shape).chunks.size(), 3U);
  check(call);
  call.shape.narrow_dkv = true;
  EXPECT_GT(plan_backward(call.shape).scratch_cells, 0);
  check(call);
  call.shape.narrow_dkv = call.shape.init_dkv = false;
  check(call);
}

TEST(BackwardPlan, TakesTheScratchThatAPlanGives) {
  const Problem problem = parse_problem("s_q=4096 h_q=16 d=512 grad=1");
  const std::vector<Slice> slices = mask_slices(problem);
  CallShape call = whole_call(problem, slices, true);
  const std::int64_t whole = sm90_kernel().workspace_bytes(problem, call);
  EXPECT_GT(whole, kPoolBytes / 2);
  call.scratch = std::int64_t{32} << 20;
  const std::int64_t bounded = sm90_kernel().workspace_bytes(problem, call);
  EXPECT_GT(bounded, call.scratch / 2);
  EXPECT_LT(bounded, 2 * call.scratch);  // and the lists
}

TEST(BackwardPlan, ServesPartsOfTheHeads) {
  Call call{shape_of(200, 300, {{0, 10, 180, 5, 290, 90, 0, kInfinity, 0}}), 0, 6};
  call.shape.heads_kv = 3;
  call.shape.group = 2;
  for (const std::int64_t pool : {std::int64_t{0}, kAnyPool, std::int64_t{2 << 20}}) {
    call.shape.pool_bytes = pool;
    call.q_first = 0;
    call.heads_q = 6;
    check(call);
    call.q_first = 1;
    call.heads_q = 4;
    check(call);
  }
}

TEST(BackwardPlan, PacksWhatIsNotAligned) {
  BackwardShape shape = shape_of(1000, 700, {{0, 0, 1000, 0, 700, 0, 0}});
  shape.heads_kv = 3;
  shape.group = 2;
  EXPECT_FALSE(plan_backward(shape).packs);
  for (const auto& [d, d_v] : {std::pair{264, 264}, {264, 512}, {320, 504}}) {
    shape.d = d;
    shape.d_v = d_v;
    shape.pool_bytes = 0;
    const BackwardPlan plan = plan_backward(shape);
    ASSERT_TRUE(plan.packs);
    const std::int64_t heads = plan.offsets.front().kv_count, columns = packed_columns(d),
                       columns_v = packed_columns(d_v);
    EXPECT_GE(columns, d);
    EXPECT_EQ(columns % 64, 0);
    EXPECT_GE(plan.q_packed, static_cast<std::int64_t>(plan.lists.size()));
    EXPECT_GE(plan.k_packed, plan.q_packed + 1000 * 2 * heads * columns * 2);
    EXPECT_GE(plan.dout_packed, plan.k_packed + 700 * heads * columns * 2);
    EXPECT_GE(plan.v_packed, plan.dout_packed + 1000 * 2 * heads * columns_v * 2);
    EXPECT_GE(plan.p_offset, plan.v_packed + 700 * heads * columns_v * 2);
    shape.pool_bytes = kAnyPool;
    EXPECT_FALSE(plan_backward(shape).packs) << "copies that take more than the pools";
  }
}

TEST(BackwardPlan, KeepsToItsDefaultRoomWithCopies) {
  BackwardShape shape = shape_of(16384, 16384, {causal(0, 16384)});
  shape.d = shape.d_v = 264;
  shape.heads_kv = 16;
  const BackwardPlan plan = plan_backward(shape);
  EXPECT_TRUE(plan.packs);
  EXPECT_LE(plan.workspace_bytes, 300'000'000);
}

TEST(BackwardPlan, SecondBlocksHaveTheRestOfTheColumns) {
  for (int d = 264; d <= 512; d += 8) {
    const int columns = gradient_columns(d, 264), second = second_gradient_column(d, 264);
    EXPECT_LE(second, columns);
    EXPECT_GE(second + columns - (d % 16 == 8 ? 8 : 0), d) << "rows may be shifted";
    EXPECT_TRUE(second == columns || second % 64 == 0);
  }
  EXPECT_EQ(second_gradient_column(264, 264), 128);
  EXPECT_EQ(second_gradient_column(320, 320), 160);
}

class BackwardPlanOf : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(HeadDims, BackwardPlanOf, ::testing::Values(320, 512));

TEST_P(BackwardPlanOf, BalancesItsTeams) {
  BackwardShape shape = shape_of(16384, 16384, {causal(0, 16384)});
  shape.d = shape.d_v = GetParam();
  shape.heads_kv = 16;
  shape.workers = 132;
  const BackwardPlan plan = plan_backward(shape);
  EXPECT_LE(plan.workspace_bytes, 300'000'000);
  for (const ChunkOffsets& offsets : plan.offsets) {
    const ChunkLists lists = offsets.at(plan.lists.data());
    std::int64_t most = 0, all = 0;
    const int teams = teams_of(shape.workers);
    for (int t = 0; t < teams; ++t) {
      std::int64_t mine = 0;
      for (int i = lists.item_first[t]; i < lists.item_first[t + 1]; ++i) {
        mine += lists.gradient_cells[lists.items[i].cell].steps + 3;
      }
      most = std::max(most, mine);
      all += mine;
    }
    EXPECT_LE(static_cast<double>(most), 1.06 * static_cast<double>(all) / teams);
  }
}

/// Slices whose pairs never coincide: keys in segments, rows in ranges with bands of their own.
std::vector<Slice> random_slices(std::mt19937_64& random, const BackwardShape& shape) {
  const auto below = [&](std::int64_t n) {
    return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(n));
  };
  const auto edge = [&] { return below(4) == 0 ? kInfinity : below(260) - 60; };
  std::vector<Slice> slices;
  for (std::int64_t b = 0; b < shape.batch; ++b) {
    for (std::int64_t key = below(3); key < shape.rows_k;) {
      const std::int64_t k_len = std::min(shape.rows_k - key, 1 + below(shape.rows_k));
      for (std::int64_t row = below(shape.rows_q + 1); row < shape.rows_q;) {
        const std::int64_t q_len = std::min(shape.rows_q - row, 1 + below(shape.rows_q));
        slices.push_back({b, row, q_len, key, k_len, below(400) - 200, below(400) - 200, edge(), edge()});
        row += q_len + below(3);
      }
      key += k_len + below(3);
    }
  }
  std::shuffle(slices.begin(), slices.end(), random);
  return slices;
}

TEST(BackwardPlan, ServesRandomSliceLists) {
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    const auto pick = [&](auto... values) {
      const int list[] = {values...};
      return list[random() % sizeof...(values)];
    };
    Call call;
    BackwardShape& shape = call.shape;
    shape = shape_of(pick(1, 65, 130, 300, 450), pick(1, 63, 129, 300, 520), {});
    shape.batch = pick(1, 2);
    shape.heads_kv = pick(1, 2, 3);
    shape.group = pick(1, 2);
    shape.workers = pick(1, 7, 132);
    shape.init_dq = pick(0, 1) != 0;
    shape.init_dkv = pick(0, 1) != 0;
    shape.narrow_dkv = shape.init_dkv && pick(0, 1) != 0;
    shape.pool_bytes = pick(0, 1, 1 << 20);
    call.heads_q = shape.heads_kv * shape.group;
    shape.slices = random_slices(random, shape);
    check(call);
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace rotunda::sm90::wide
