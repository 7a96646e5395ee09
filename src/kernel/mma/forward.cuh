// Forward: a block a tile of query rows of one head; online softmax over the tiles of keys that its rows see.
#pragma once

#include "kernel/mma/launch.cuh"
#include "kernel/mma/tile.cuh"

namespace rotunda::mma {

constexpr float kMinusInfinity = -HUGE_VALF;
constexpr double kLog2E = 1.4426950408889634, kLn2 = 0.69314718055994531;

static_assert(2 * sizeof(Source) == kSourceBytes);

/// Shared memory: tiles of rows, of keys, of values (or the one for both), weights, row maxima, runs.
template <class S>
struct ForwardMemory {
  char *q, *k, *v, *weights;
  float* maxima;  ///< [part][row]: first of a tile's logits, at the end sums
  RunList* runs;
  Source* sources;  ///< keys, values: not in registers, which are scarcer

  __device__ ForwardMemory(char* memory, const Walk& walk) {
    q = memory;
    k = q + walk.tile_rows * S::kPitch;
    v = walk.one_buffer ? k : k + S::kColumns * S::kPitch;
    weights = v + S::kColumns * S::kPitch;
    maxima = reinterpret_cast<float*>(weights + (S::kParts > 1 ? walk.tile_rows : S::kTeamRows) * S::kWeightPitch);
    runs = reinterpret_cast<RunList*>(maxima + (S::kParts > 1 ? S::kParts * walk.tile_rows : 0));
    sources = reinterpret_cast<Source*>(runs + 1);
  }
};

/// The running softmax of a thread's rows, in powers of 2: with base near the greatest logit so far, the sums are those
/// of exp2(logit - base) over the columns that this thread has met; `rounded` of the same weights in 16 bits, as they
/// multiply the values. It is what those products are divided by, so that a row's weights add up to 1.
template <class S>
struct Softmax {
  float base[S::kStrips][2], sum[S::kStrips][2], rounded[S::kStrips][2];
  unsigned seen = 0;           ///< bit 2·strip + half: the row has seen a key
  float top = kMinusInfinity;  ///< greatest logit of the thread's rows, not scaled

  /// What is subtracted.
  [[nodiscard]] __device__ static float finite(float base) { return base == kMinusInfinity ? 0 : base; }
};

template <class S>
struct ForwardState {
  Softmax<S> softmax;
  Sums<S> sums;
};

/// The state so far: acc is normalised, so its weight is that of lse.
template <class S>
__device__ void start(const ForwardCall& call, const TilePlace& place, const Position<S>& at, ForwardState<S>& state) {
#pragma unroll
  for (int m = 0; m < S::kStrips; ++m) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const std::int64_t row = place.first + at.tile_row(m, h);
      double lse = -HUGE_VAL;
      if (!call.init && row < call.walk.rows) {
        lse = *call.lse.at<float>(place.batch, row, place.head);
        if (call.lse_low.data != nullptr && lse != -HUGE_VAL)
          lse += *call.lse_low.at<float>(place.batch, row, place.head);
      }
      const bool empty = lse == -HUGE_VAL;
      const float base = static_cast<float>(lse * kLog2E);
      const float weight = empty ? 0 : exp2f(static_cast<float>(lse * kLog2E - base));
      state.softmax.base[m][h] = base;
      state.softmax.sum[m][h] = state.softmax.rounded[m][h] = at.part == 0 && at.column == 0 ? weight : 0;
      float2 values[S::kSumBlocks] = {};
      if (!empty) load_sums<S>(call.acc, place.batch, row, place.head, call.d_v, at, values);
#pragma unroll
      for (int n = 0; n < S::kSumBlocks; ++n) {
        state.sums[m][n][2 * h] = values[n].x * weight;
        state.sums[m][n][2 * h + 1] = values[n].y * weight;
      }
    }
  }
}

/// Scores of pairs that are not visible become -inf.
template <class S>
__device__ void mask_scores(const Visible& visible, const Position<S>& at, Scores<S>& scores) {
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
          if (c < begin || c >= end) scores[m][n][2 * h + e] = kMinusInfinity;
        }
      }
    }
  }
}

template <class S>
__device__ void note_seen(const Visible& visible, const Position<S>& at, Softmax<S>& softmax) {
#pragma unroll
  for (int r = 0; r < 2 * S::kStrips; ++r) {
    const int row = at.tile_row(r / 2, r % 2);
    if (visible.begin(row) < visible.end(row)) softmax.seen |= 1U << r;
  }
}

/// The greatest score of each of the thread's rows, among all warps of the team.
template <class S>
__device__ void find_maxima(const Scores<S>& scores, const Position<S>& at, int tile_rows, float* shared,
                            float (&most)[S::kStrips][2]) {
#pragma unroll
  for (int m = 0; m < S::kStrips; ++m) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float x = kMinusInfinity;
#pragma unroll
      for (int n = 0; n < S::kScoreBlocks; ++n) x = fmaxf(x, fmaxf(scores[m][n][2 * h], scores[m][n][2 * h + 1]));
      x = fmaxf(x, __shfl_xor_sync(0xffffffffU, x, 1));
      most[m][h] = fmaxf(x, __shfl_xor_sync(0xffffffffU, x, 2));
      if (S::kParts > 1 && at.column == 0) shared[at.part * tile_rows + at.tile_row(m, h)] = most[m][h];
    }
  }
  if constexpr (S::kParts > 1) {
    wait_at_barrier(1 + at.team, 32 * S::kParts);
#pragma unroll
    for (int m = 0; m < S::kStrips; ++m) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
#pragma unroll
        for (int p = 0; p < S::kParts; ++p) most[m][h] = fmaxf(most[m][h], shared[p * tile_rows + at.tile_row(m, h)]);
      }
    }
  }
}

/// Turns scores into weights, and moves the base of the sums where a row's greatest logit is more than 2^8 beyond it:
/// weights up to that are as exact as those below 1, and the sums are seldom multiplied.
template <class S>
__device__ void weigh(const float (&most)[S::kStrips][2], float scale_log2, Scores<S>& scores, ForwardState<S>& state) {
  constexpr float kLeeway = 8;
  Softmax<S>& softmax = state.softmax;
  bool moved = false;
  float factor[S::kStrips][2];
#pragma unroll
  for (int m = 0; m < S::kStrips; ++m) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      softmax.top = fmaxf(softmax.top, most[m][h]);
      const float base = softmax.base[m][h], logit = most[m][h] * scale_log2;
      const bool moves = logit > base + kLeeway;
      const float next = moves ? logit : base;
      factor[m][h] = moves ? exp2_fast(base - next) : 1;
      softmax.base[m][h] = next;
      softmax.rounded[m][h] *= factor[m][h];
      moved = moved || moves;
      float sum = softmax.sum[m][h] * factor[m][h];
      const float subtracted = Softmax<S>::finite(next);
#pragma unroll
      for (int n = 0; n < S::kScoreBlocks; ++n) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          float& score = scores[m][n][2 * h + e];
          score = exp2_fast(fmaf(score, scale_log2, -subtracted));
          sum += score;
        }
      }
      softmax.sum[m][h] = sum;
    }
  }
  if (!__any_sync(0xffffffffU, moved)) return;
#pragma unroll
  for (int m = 0; m < S::kStrips; ++m) {
#pragma unroll
    for (int n = 0; n < S::kSumBlocks; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) state.sums[m][n][e] *= factor[m][e / 2];
    }
  }
}

/// Adds a tile's weights as they have been rounded.
template <class T, class S>
__device__ void sum_rounded(const Weights<S>& weights, Softmax<S>& softmax) {
#pragma unroll
  for (int m = 0; m < S::kStrips; ++m) {
#pragma unroll
    for (int n = 0; n < S::kScoreBlocks; ++n) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const float2 both = unpack<T>(weights[m][n][h]);
        softmax.rounded[m][h] += both.x + both.y;
      }
    }
  }
}

/// Sums of each of the thread's rows over all threads that share it. Begins and ends with the block in step.
template <class S>
__device__ void total_sums(const Position<S>& at, int tile_rows, float* shared, float (&sum)[S::kStrips][2]) {
  __syncthreads();
#pragma unroll
  for (int m = 0; m < S::kStrips; ++m) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      sum[m][h] += __shfl_xor_sync(0xffffffffU, sum[m][h], 1);
      sum[m][h] += __shfl_xor_sync(0xffffffffU, sum[m][h], 2);
      if (S::kParts > 1 && at.column == 0) shared[at.part * tile_rows + at.tile_row(m, h)] = sum[m][h];
    }
  }
  __syncthreads();
  if constexpr (S::kParts > 1) {
#pragma unroll
    for (int m = 0; m < S::kStrips; ++m) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        sum[m][h] = 0;
#pragma unroll
        for (int p = 0; p < S::kParts; ++p) sum[m][h] += shared[p * tile_rows + at.tile_row(m, h)];
      }
    }
  }
}

__device__ inline void store_lse(const ForwardCall& call, const TilePlace& place, std::int64_t row, double lse) {
  const auto high = static_cast<float>(lse);
  *call.lse.at<float>(place.batch, row, place.head) = high;
  if (call.last || call.lse_low.data == nullptr) return;
  const double low = lse == -HUGE_VAL ? 0 : lse - high;
  *call.lse_low.at<float>(place.batch, row, place.head) = static_cast<float>(low);
}

template <class T, class S>
__device__ void finish(const ForwardCall& call, const TilePlace& place, const Position<S>& at,
                       const ForwardMemory<S>& memory, ForwardState<S>& state) {
  Softmax<S>& softmax = state.softmax;
  total_sums<S>(at, call.walk.tile_rows, memory.maxima, softmax.sum);
  total_sums<S>(at, call.walk.tile_rows, memory.maxima, softmax.rounded);
  const View& to = call.last ? call.out : call.acc;
  float top = softmax.top;
#pragma unroll
  for (int m = 0; m < S::kStrips; ++m) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const std::int64_t row = place.first + at.tile_row(m, h);
      const bool seen = (softmax.seen >> (2 * m + h) & 1U) != 0;
      if (row >= call.walk.rows || !(seen || call.init || call.last)) continue;
      const float sum = softmax.sum[m][h], rounded = softmax.rounded[m][h], inverse = rounded == 0 ? 1 : 1 / rounded;
      if (isnan(sum) && softmax.top != HUGE_VALF)
        top = sum;  // maxima pass over NaN; infinite logits have such sums too
      if (at.part == 0 && at.column == 0) {
        store_lse(call, place, row, Softmax<S>::finite(softmax.base[m][h]) * kLn2 + static_cast<double>(logf(sum)));
      }
      float2 values[S::kSumBlocks];
#pragma unroll
      for (int n = 0; n < S::kSumBlocks; ++n) {
        values[n] = {state.sums[m][n][2 * h] * inverse, state.sums[m][n][2 * h + 1] * inverse};
      }
      store_sums<T, S>(to, place.batch, row, place.head, call.d_v, at, values);
    }
  }
  if (call.max_logit == nullptr) return;
  for (int step = 16; step > 0; step /= 2) top = cuda::greater(top, __shfl_xor_sync(0xffffffffU, top, step));
  if (at.lane == 0 && top != kMinusInfinity) {
    cuda::raise(call.max_logit + place.head, static_cast<float>(top * call.scale));
  }
}

template <class T, class S>
__global__ void __launch_bounds__(S::kMaxThreads, S::kBlocks) forward_kernel(const ForwardCall call) {
  extern __shared__ __align__(1024) char shared[];
  const ForwardMemory<S> memory(shared, call.walk);
  const TilePlace place(call.walk, true);
  const Position<S> at;
  const int rows = call.walk.tile_rows;
  const std::uint32_t k_tile = shared_address(memory.k), v_tile = shared_address(memory.v);
  if (threadIdx.x == 0) {  // find_runs brings the block in step
    const int kv_head = call.map.kv(place.head);
    memory.sources[0] = Source(call.k, place.batch, kv_head, call.d);
    memory.sources[1] = Source(call.v, place.batch, kv_head, call.d_v);
  }
  const auto load_k = [&](const Visible& next) {
    load_rows<S>(memory.sources[0], next.first, next.count, S::kColumns, k_tile);
  };
  const auto load_v = [&](const Visible& next) {
    load_rows<S>(memory.sources[1], next.first, next.count, S::kColumns, v_tile);
  };

  ForwardState<S> state;
  start(call, place, Position<S>(fresh_thread()), state);
  const auto valid = static_cast<int>(min(call.walk.rows - place.first, std::int64_t{rows}));
  load_rows<S>(Source(call.q, place.batch, place.head, call.d), place.first, valid, rows, shared_address(memory.q));
  const std::uint32_t left = left_address<S>(shared_address(memory.q), at), right = right_address<S>(k_tile, at);
  char* const team = team_weights<S>(memory.weights, at);

  for (int first = 0; first < call.walk.slice_count; first += kRuns) {
    find_runs<false>(call.walk, place, rows, first, *memory.runs);
    Cursor cursor;
    if (cursor.done(*memory.runs)) continue;
    load_k(Visible(*memory.runs, cursor, S::kColumns));
    close_group();
    while (!cursor.done(*memory.runs)) {
      wait_for_groups<0>();
      __syncthreads();  // the keys are here, and the values before have been used
      if (!call.walk.one_buffer) {
        load_v(Visible(*memory.runs, cursor, S::kColumns));
        close_group();
      }
      Scores<S> scores;
      make_scores<T, S>(left, right, call.d, scores);
      const Visible visible(*memory.runs, cursor, S::kColumns);  // not before: the scores need the registers
      const bool full = visible.full(rows, S::kColumns);
      if (call.walk.one_buffer) {
        __syncthreads();
        load_v(visible);
        close_group();
      }
      if (!full) mask_scores<S>(visible, at, scores);
      note_seen<S>(visible, at, state.softmax);
      float most[S::kStrips][2];
      find_maxima<S>(scores, at, rows, memory.maxima, most);
      weigh<S>(most, call.scale_log2, scores, state);
      Weights<S> weights;
      pack_weights<T, S>(scores, weights);
      sum_rounded<T, S>(weights, state.softmax);
      if constexpr (S::kParts > 1) store_weights<S>(weights, at, team);

      wait_for_groups<0>();
      __syncthreads();  // values and weights are here, and the keys have been used
      cursor.advance(*memory.runs, S::kColumns);
      const bool careful = !full && has_bad<T, S>(memory.v, visible.count, call.d_v);
      const auto load_next = [&] {
        if (!cursor.done(*memory.runs)) load_k(Visible(*memory.runs, cursor, S::kColumns));
        close_group();
      };
      if (!call.walk.one_buffer) load_next();
      if (careful) {
        add_visible_in_turn<T, S>(visible, weights, team, memory.v, call.d_v, at, state.sums);
      } else {
        add_product<T, S>(weights, team, v_tile, call.d_v, at, state.sums);
      }
      if (call.walk.one_buffer) {
        __syncthreads();
        load_next();
      }
    }
  }
  wait_for_groups<0>();
  finish<T, S>(call, place, Position<S>(fresh_thread()), memory, state);
}

template <class T>
void launch_forward(const ForwardCall& call, const Tiling& tiling, std::int64_t blocks, cudaStream_t stream) {
  const auto start = [&](auto kernel) { launch(kernel, call, tiling, blocks, stream, "mma forward"); };
  switch (tiling.width) {
    case 64: return start(forward_kernel<T, Forward64>);
    case 128: return start(forward_kernel<T, Forward128>);
    case 256: return start(forward_kernel<T, Forward256>);
    default: break;
  }
  if (tiling.small) return start(forward_kernel<T, Forward512Small>);
  start(forward_kernel<T, Forward512>);
}

}  // namespace rotunda::mma
