// Backward in two passes that each recompute P from the final lse: with dP = dout·Vᵀ and dS = P∘(dP - delta),
// dq = scale·dS·K by tiles of query rows; dk = scale·dSᵀ·Q and dv = Pᵀ·dout by tiles of keys, through the query heads
// of their KV head in order. Every sum has one owner and one order.
//
// The passes are one kernel. Its rows are query rows or keys; both times scores are first·firstᵀ (of Q and K) and
// second·secondᵀ (of dout and V), in registers of the rows' owner, and weights the left side of the sums.
#pragma once

#include "kernel/mma/launch.cuh"
#include "kernel/mma/tile.cuh"

namespace rotunda::mma {

/// Shared memory: two tiles of rows, two of columns (or one for both), weights, lse and delta of columns, runs.
template <class S, Pass kPass>
struct BackwardMemory {
  char *rows[2], *columns[2], *weights[2];
  float* statistics;
  RunList* runs;

  __device__ BackwardMemory(char* memory, const Walk& walk) {
    rows[0] = memory;
    rows[1] = rows[0] + walk.tile_rows * S::kPitch;
    columns[0] = rows[1] + walk.tile_rows * S::kPitch;
    columns[1] = walk.one_buffer ? columns[0] : columns[0] + S::kColumns * S::kPitch;
    weights[0] = columns[1] + S::kColumns * S::kPitch;
    const int weight_bytes = (S::kParts > 1 ? walk.tile_rows : S::kTeamRows) * S::kWeightPitch;
    weights[1] = weights[0] + (kPass == Pass::keys && !walk.one_buffer ? weight_bytes : 0);
    statistics = reinterpret_cast<float*>(weights[1] + weight_bytes);
    runs = reinterpret_cast<RunList*>(statistics + (kPass == Pass::keys ? 2 * S::kColumns : 0));
  }
};

/// lse in powers of 2, and delta. A row that gives no key weight has +inf, so that exp2(logit - lse) is 0.
struct RowStatistics {
  float lse_log2 = HUGE_VALF, delta = 0;

  RowStatistics() = default;
  __device__ RowStatistics(const BackwardCall& call, std::int64_t batch, std::int64_t row, int head) {
    constexpr float kLog2E = 1.44269504F;
    const float lse = *call.lse.at<float>(batch, row, head);
    if (lse == -HUGE_VALF) return;
    lse_log2 = lse * kLog2E;
    delta = *call.delta.at<float>(batch, row, head);
  }
};

/// Those of the rows and columns of a thread's scores: of rows in registers (dq), of columns in shared memory (dk, dv).
template <class S, Pass kPass>
struct Statistics {
  RowStatistics rows[kPass == Pass::queries ? S::kStrips : 1][2];
  const float* columns = nullptr;

  [[nodiscard]] __device__ float lse_log2(int m, int h, int column) const {
    if constexpr (kPass == Pass::queries) return rows[m][h].lse_log2;
    return columns[column];
  }
  [[nodiscard]] __device__ float delta(int m, int h, int column) const {
    if constexpr (kPass == Pass::queries) return rows[m][h].delta;
    return columns[S::kColumns + column];
  }
};

/// Turns logits and dP into P and dS.
template <class S, Pass kPass>
__device__ void weigh(const Statistics<S, kPass>& statistics, float scale_log2, const Position<S>& at, Scores<S>& p,
                      Scores<S>& ds) {
#pragma unroll
  for (int m = 0; m < S::kStrips; ++m) {
#pragma unroll
    for (int n = 0; n < S::kScoreBlocks; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int h = i / 2, c = at.score_column(n) + i % 2;
        p[m][n][i] = exp2_fast(fmaf(p[m][n][i], scale_log2, -statistics.lse_log2(m, h, c)));
        ds[m][n][i] = p[m][n][i] * (ds[m][n][i] - statistics.delta(m, h, c));
      }
    }
  }
}

/// Weights of pairs that are not visible become 0.
template <class S>
__device__ void mask_weights(const Visible& visible, const Position<S>& at, Scores<S>& p, Scores<S>& ds) {
#pragma unroll
  for (int m = 0; m < S::kStrips; ++m) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int begin = visible.begin(at.tile_row(m, h)), end = visible.end(at.tile_row(m, h));
#pragma unroll
      for (int n = 0; n < S::kScoreBlocks; ++n) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const int c = at.score_column(n) + e;
          if (c >= begin && c < end) continue;
          p[m][n][2 * h + e] = 0;
          ds[m][n][2 * h + e] = 0;
        }
      }
    }
  }
}

/// Writes a gradient's tile or adds to what is there.
template <class T, class S>
__device__ void store_gradient(const View& to, const TilePlace& place, int rows, int dim, bool init, float scale,
                               const Position<S>& at, const Sums<S>& sums) {
#pragma unroll
  for (int m = 0; m < S::kStrips; ++m) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const std::int64_t row = place.first + at.tile_row(m, h);
      if (row >= rows) continue;
      float2 values[S::kSumBlocks] = {};
      if (!init) load_sums<S>(to, place.batch, row, place.head, dim, at, values);
#pragma unroll
      for (int n = 0; n < S::kSumBlocks; ++n) {
        values[n].x = fmaf(sums[m][n][2 * h], scale, values[n].x);
        values[n].y = fmaf(sums[m][n][2 * h + 1], scale, values[n].y);
      }
      store_sums<T, S>(to, place.batch, row, place.head, dim, at, values);
    }
  }
}

/// The state and the steps of one block. [0] of pairs is what belongs to Q and K, [1] to dout and V.
template <class T, class S, Pass kPass>
struct Backward {
  static constexpr bool kKeys = kPass == Pass::keys;

  const BackwardCall& call;
  const BackwardMemory<S, kPass> memory;
  const TilePlace place;
  const Position<S> at;
  const int dim[2];
  const View& column_view0;
  const View& column_view1;
  std::uint32_t row_tile[2], column_tile[2];
  Statistics<S, kPass> statistics;
  RowStatistics next_statistics;   ///< of column threadIdx.x, on its way to shared memory
  Sums<S> sums0 = {}, sums1 = {};  ///< dq or dk; dv

  __device__ Backward(const BackwardCall& c, char* shared)
      : call(c),
        memory(shared, c.walk),
        place(c.walk, !kKeys),
        dim{c.d, c.d_v},
        column_view0(kKeys ? c.q : c.k),
        column_view1(kKeys ? c.dout : c.v) {
    const int valid = static_cast<int>(min(call.walk.rows - place.first, std::int64_t{call.walk.tile_rows}));
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      row_tile[i] = shared_address(memory.rows[i]);
      column_tile[i] = shared_address(memory.columns[i]);
      const View& view = kKeys ? (i == 0 ? call.k : call.v) : (i == 0 ? call.q : call.dout);
      load_rows<S>(Source(view, place.batch, place.head, dim[i]), place.first, valid, call.walk.tile_rows, row_tile[i]);
    }
    statistics.columns = memory.statistics;
    if constexpr (!kKeys) {
#pragma unroll
      for (int m = 0; m < S::kStrips; ++m) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const std::int64_t row = place.first + at.tile_row(m, h);
          if (row < call.walk.rows) statistics.rows[m][h] = RowStatistics(call, place.batch, row, place.head);
        }
      }
    }
  }

  /// Begins to load the columns `visible` of tensor i.
  __device__ void load(int i, const Visible& visible, int head) {
    const View& view = i == 0 ? column_view0 : column_view1;
    load_rows<S>(Source(view, place.batch, head, dim[i]), visible.first, visible.count, S::kColumns, column_tile[i]);
    close_group();
  }
  /// The same where the tensors share a buffer, to the end.
  __device__ void reload(int i, const Visible& visible, int head) {
    __syncthreads();
    load(i, visible, head);
    arrive();
  }
  static __device__ void arrive() {
    wait_for_groups<0>();
    __syncthreads();
  }

  __device__ void fetch_statistics(const Visible& visible, int head) {
    const int column = static_cast<int>(threadIdx.x);
    next_statistics = {};
    if (column < visible.count) next_statistics = RowStatistics(call, place.batch, visible.first + column, head);
  }
  __device__ void publish_statistics() {
    const int column = static_cast<int>(threadIdx.x);
    if (column >= S::kColumns) return;
    memory.statistics[column] = next_statistics.lse_log2;
    memory.statistics[S::kColumns + column] = next_statistics.delta;
  }

  __device__ void score(int i, Scores<S>& scores) {
    make_scores<T, S>(left_address<S>(row_tile[i], at), right_address<S>(column_tile[i], at), dim[i], scores);
  }

  /// sums += weights·columns, where weights lie in `slot` for a team of several warps.
  __device__ void add(int i, int slot, const Visible& visible, bool full, const Weights<S>& weights, Sums<S>& sums) {
    char* const team = team_weights<S>(memory.weights[slot], at);
    if (!full && has_bad<T, S>(memory.columns[i], visible.count, dim[i])) {
      add_visible_in_turn<T, S>(visible, weights, team, memory.columns[i], dim[i], at, sums);
    } else {
      add_product<T, S>(weights, team, column_tile[i], dim[i], at, sums);
    }
  }

  /// The tiles of the runs that are known, for query heads [first_head, end_head) or the one KV head.
  __device__ void add_runs(int first_head, int end_head) {
    const RunList& runs = *memory.runs;
    const bool one_buffer = call.walk.one_buffer;
    Cursor cursor;
    int head = first_head;
    if (cursor.done(runs) || head == end_head) return;
    const auto seen = [&] { return Visible(runs, cursor, S::kColumns); };
    if constexpr (kKeys) fetch_statistics(seen(), head);
    load(1, seen(), head);
    while (head != end_head) {
      if constexpr (kKeys) publish_statistics();
      arrive();  // second columns are here, the first and the weights before have been used
      if (!one_buffer) load(0, seen(), head);
      Scores<S> p, ds;
      score(1, ds);
      if (one_buffer) {
        reload(0, seen(), head);
      } else {
        arrive();
      }
      const Cursor now = cursor;
      const int head_now = head;
      cursor.advance(runs, S::kColumns);
      if (cursor.done(runs)) {
        cursor = {};
        ++head;
      }
      const bool more = head != end_head;
      if (more) {
        if constexpr (kKeys) fetch_statistics(seen(), head);
        if (!kKeys && !one_buffer) load(1, seen(), head);
      }
      score(0, p);
      const Visible visible(runs, now, S::kColumns);  // not before: the scores need the registers
      const bool full = visible.full(call.walk.tile_rows, S::kColumns);
      weigh<S, kPass>(statistics, call.scale_log2, at, p, ds);
      if (!full) mask_weights<S>(visible, at, p, ds);
      const auto load_next = [&] {
        if (more) load(1, seen(), head);
      };
      if constexpr (kKeys) {
        add_keys(visible, full, head_now, p, ds, load_next);
      } else {
        add_queries(visible, full, ds);
      }
      if (!one_buffer) continue;
      __syncthreads();
      load_next();
    }
  }

  __device__ void add_queries(const Visible& visible, bool full, const Scores<S>& ds) {
    Weights<S> weights;
    pack_weights<T, S>(ds, weights);
    if constexpr (S::kParts > 1) {
      store_weights<S>(weights, at, team_weights<S>(memory.weights[0], at));
      __syncthreads();
    }
    add(0, 0, visible, full, weights, sums0);
  }

  /// The next tile's second columns are loaded as soon as these have been used.
  template <class LoadNext>
  __device__ void add_keys(const Visible& visible, bool full, int head, const Scores<S>& p, const Scores<S>& ds,
                           LoadNext&& load_next) {
    const bool one_buffer = call.walk.one_buffer;
    Weights<S> weights, next;
    pack_weights<T, S>(p, weights);
    pack_weights<T, S>(ds, next);
    store_weights<S>(weights, at, team_weights<S>(memory.weights[0], at));
    if (one_buffer) {
      reload(1, visible, head);
    } else {
      store_weights<S>(next, at, team_weights<S>(memory.weights[1], at));
      __syncthreads();
    }
    add(1, 0, visible, full, weights, sums1);
    if (one_buffer) {
      reload(0, visible, head);
      store_weights<S>(next, at, team_weights<S>(memory.weights[1], at));
      __syncthreads();
    } else {
      __syncthreads();
      load_next();
    }
    add(0, 1, visible, full, next, sums0);
  }
};

template <class T, class S, Pass kPass>
__global__ void __launch_bounds__(S::kMaxThreads, S::kBlocks) backward_kernel(const BackwardCall call) {
  extern __shared__ __align__(1024) char shared[];
  constexpr bool kKeys = kPass == Pass::keys;
  Backward<T, S, kPass> block(call, shared);
  int first_head = call.map.kv(block.place.head), end_head = first_head + 1;
  if constexpr (kKeys) {  // the query heads that read this KV head
    first_head = (block.place.head + call.map.kv_first) * call.map.group - call.map.q_first;
    end_head = min(first_head + call.map.group, call.heads_q);
    first_head = max(first_head, 0);
  }
  for (int first = 0; first < call.walk.slice_count; first += kRuns) {
    find_runs<kKeys>(call.walk, block.place, call.walk.tile_rows, first, *block.memory.runs);
    block.add_runs(first_head, end_head);
  }
  wait_for_groups<0>();
  const Position<S> at(fresh_thread());
  const View& first_gradient = kKeys ? call.dk : call.dq;
  store_gradient<T, S>(first_gradient, block.place, call.walk.rows, call.d, call.init, call.scale, at, block.sums0);
  if constexpr (kKeys) {
    store_gradient<T, S>(call.dv, block.place, call.walk.rows, call.d_v, call.init, 1, at, block.sums1);
  }
}

template <class T>
void launch_queries(const BackwardCall& call, const Tiling& tiling, std::int64_t blocks, cudaStream_t stream) {
  const auto start = [&](auto kernel) { launch(kernel, call, tiling, blocks, stream, "mma backward, dq"); };
  switch (tiling.width) {
    case 64: return start(backward_kernel<T, Queries64, Pass::queries>);
    case 128: return start(backward_kernel<T, Queries128, Pass::queries>);
    case 256: return start(backward_kernel<T, Queries256, Pass::queries>);
    default: return start(backward_kernel<T, Queries512, Pass::queries>);
  }
}

template <class T>
void launch_keys(const BackwardCall& call, const Tiling& tiling, std::int64_t blocks, cudaStream_t stream) {
  const auto start = [&](auto kernel) { launch(kernel, call, tiling, blocks, stream, "mma backward, dk and dv"); };
  switch (tiling.width) {
    case 64: return start(backward_kernel<T, Keys64, Pass::keys>);
    case 128: return start(backward_kernel<T, Keys128, Pass::keys>);
    case 256: return start(backward_kernel<T, Keys256, Pass::keys>);
    default: break;
  }
  if (tiling.small) return start(backward_kernel<T, Keys512Small, Pass::keys>);
  start(backward_kernel<T, Keys512, Pass::keys>);
}

}  // namespace rotunda::mma
