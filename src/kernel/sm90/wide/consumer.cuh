// A consumer: one of two warpgroups of a CTA.
//
// Consumer w owns some of O's columns for all 64 rows, and computes S and P of the tiles of parity w; P and the
// rows' statistics go through shared memory to both. So the tensor cores work on one's S(n + 2) and the other's P·V(n +
// 1) while softmax(n) is computed. Online softmax in units of S: with c = scale · log2(e) and the row's reference r,
//     P = exp2(c · (S - r)),   sum = Σ P,   O = Σ P·V;   out = O / sum,   lse = scale · r + log(sum).
// The reference moves only when the row's maximum outgrows it by 2^8, so O is seldom rescaled.
#pragma once

#include "kernel/sm90/ptx/mbarrier.cuh"
#include "kernel/sm90/ptx/registers.cuh"
#include "kernel/sm90/ptx/wgmma.cuh"
#include "kernel/sm90/wide/epilogue.cuh"
#include "kernel/sm90/wide/scheduler.cuh"

namespace rotunda::sm90::wide {

constexpr float kSlack = 8;  ///< log2 of what P may reach: exact in any dtype, since sums are fp32

/// `kColumns` of O's are its own.
template <class T, int kDim, int kColumns>
class Consumer {
  static constexpr int kChunks = chunks_of(kDim);
  using S = Shape<kChunks>;
  using Major = ptx::Major;
  /// Whether there are registers enough to multiply the own P from them, which leaves more of shared memory's
  /// bandwidth.
  static constexpr bool kOwnInRegisters = kColumns <= 192;
  static constexpr int kSteps = S::kSlabKeys / 16, kStepsOfPiece = kTileKeys / kPieces / 16;  ///< of 16 keys

 public:
  __device__ __forceinline__ Consumer(const ForwardCall& call, std::uint8_t* memory, int number)
      : call_(call),
        memory_(memory),
        tiles_(memory),
        base_(ptx::shared_address(memory)),
        number_(number),
        place_{number == 0 ? 0 : chunks_of(kDim - kColumns)} {}

  /// S of the first own tile; then own softmax and P·V, the next own S, the other's P·V, and so on.
  __device__ __forceinline__ void run() {
    int n = number_, flag = await_flags(n);
    if ((flag & Tile::kEnd) != 0) return;
    start_scores<false>(n, flag);
    ptx::wgmma_wait<0>();
    finish_scores(n, flag);
    if (number_ == 1) add_values_of_other<false>(0, 0, false);
    // Known a tile ahead: a wait at the loop's head would make the compiler take the warp for a divergent one.
    int next_flag = await_flags(n + 2);
    while ((next_flag & Tile::kEnd) == 0) {
      add_own_tile(n, flag, false);
      start_scores<true>(n + 2, next_flag);
      finish_tile(n, flag);
      flag = next_flag;
      next_flag = await_flags(n + 4);
      add_values_of_other<true>(n + 1, flag, false);
      n += 2;
    }
    const bool last = (flags(n + 1) & Tile::kEnd) != 0;
    add_own_tile(n, flag, last);
    ptx::wgmma_wait<0>();
    release_values(n, S::kValueSlabs - 1, last);
    finish_tile(n, flag);
    if (!last) add_values_of_other<false>(n + 1, 0, true);
  }

 private:
  [[nodiscard]] __device__ __forceinline__ int await_flags(int n) const {
    return ptx::uniform(tiles_.get(n).row_and_flags) & Tile::kFlags;
  }
  [[nodiscard]] __device__ __forceinline__ int flags(int n) const {
    return ptx::uniform(tiles_.known(n).row_and_flags) & Tile::kFlags;
  }

  /// Gives a stage back to the loaders of both CTAs; `readers` of the two that a stage has.
  __device__ __forceinline__ void release_stage(int stage, int readers) const {
    if (place_.lane() == 0 && place_.warp() < kCluster) {
      ptx::mbarrier_arrive_remote(base_ + S::kStageFree + 8 * stage, place_.warp(), readers);
    }
  }
  __device__ __forceinline__ void release_values(int n, int slab, bool last) const {
    release_stage(S::stage(S::value_stage(n, last), slab), 1);
  }
  __device__ __forceinline__ void release_keys(int n, int chunk, bool last_use) const {
    release_stage(S::stage(S::key_stage(n), chunk), kConsumers);
    if (last_use && place_.first()) ptx::mbarrier_arrive(base_ + S::kQueryFree + 8 * chunk);
  }

  /// Starts S = Q·Kᵀ of tile n. kBehindValues: behind P·V of tile n - 2, whose last slab is in flight. Its own last
  /// chunk stays in flight, until finish_scores.
  template <bool kBehindValues>
  __device__ __forceinline__ void start_scores(int n, int flag) {
    const bool first_use = (flag & Tile::kFirstPair) != 0, last_use = (flag & Tile::kLastPair) != 0;
    const std::uint32_t query_parity = (flag & Tile::kOddItem) != 0 ? 1 : 0, parity = n / 2 & 1;
    const std::uint32_t full = base_ + S::kKeysFull + 8 * kChunks * number_;
    const int first_stage = S::key_stage(n);
    std::uint32_t query = base_ + S::kQuery, ring = base_ + S::kRing;
    ptx::forget(query);
    ptx::forget(ring);
    ptx::mbarrier_wait(full, parity);
#pragma unroll
    for (int chunk = 0; chunk < kChunks; ++chunk) {
      if (first_use) ptx::mbarrier_wait(base_ + S::kQueryFull + 8 * chunk, query_parity);
      const int stage = S::stage(first_stage, chunk);
      ptx::wgmma_fence();
#pragma unroll
      for (int k = 0; k < kChunk / 16 && chunk * kChunk + k * 16 < kDim; ++k) {
        ptx::wgmma<T, kTileKeys, Major::k, Major::k>(
            s_, ptx::descriptor(query, 16, 1024) + (chunk * S::kQueryChunkBytes + k * 32) / 16,
            ptx::descriptor(ring, 16, 1024) + (stage * S::kStageBytes + k * 32) / 16, chunk + k > 0);
      }
      ptx::wgmma_commit();
      if (chunk + 1 < kChunks) ptx::mbarrier_wait(full + 8 * (chunk + 1), parity);  // ahead of the wait for wgmma
      ptx::wgmma_wait<1>();
      if (chunk > 0) {
        release_keys(n, chunk - 1, last_use);
      } else if (kBehindValues) {
        release_values(n - 2, S::kValueSlabs - 1, false);
      }
    }
  }
  /// Once S is known to be complete.
  __device__ __forceinline__ void finish_scores(int n, int flag) const {
    release_keys(n, kChunks - 1, (flag & Tile::kLastPair) != 0);
  }

  /// S of the own tile n, complete, becomes P; O += P·V. The last slab stays in flight. `last`: of all tiles.
  __device__ __forceinline__ void add_own_tile(int n, int flag, bool last) {
    ptx::pin(s_);
    begin_tile(n, flag);
    if ((flag & Tile::kFirst) != 0) begin_rows(n);
    if ((flag & Tile::kWhole) == 0) mask(n);
    move_reference();
    const bool fresh = is_fresh(flag);
    const int first_stage = S::value_stage(n, last);
    std::uint32_t weights = base_ + S::kWeights + S::kWeightBytes * number_, values = values_of_mine();
    ptx::forget(weights);
    ptx::forget(values);
    float sum[2] = {0, 0};
    constexpr int kSlabs = S::kValueSlabs / kPieces;
#pragma unroll
    for (int piece = 0; piece < kPieces; ++piece) {
      const std::uint32_t full = base_ + S::kWeightsFull + 8 * (kPieces * number_ + piece);
      std::uint32_t own[kStepsOfPiece][4];
      write_weights(piece, weights, sum, own);
      if (piece == kPieces - 1) write_sums(sum);
      ptx::fence_async_proxy();
      __syncwarp();
      if (place_.lane() == 0) ptx::mbarrier_arrive(full);
      if (piece == 0) rescale(fresh);
      if constexpr (!kOwnInRegisters) ptx::mbarrier_wait(full, n / 2 & 1);
#pragma unroll
      for (int i = 0; i < kSlabs; ++i) {
        const int slab = kSlabs * piece + i;
        await_values(n, slab);
        if constexpr (kOwnInRegisters) {
          multiply(own, values, slab, S::stage(first_stage, slab), fresh);
        } else {
          multiply(weights, values, slab, S::stage(first_stage, slab), fresh);
        }
        if (piece > 0 && i == 0) {
          ptx::wgmma_wait<1>();
#pragma unroll
          for (int done = slab - kSlabs; done < slab; ++done) release_values(n, done, last);
        } else if (piece == kPieces - 1) {
          ptx::wgmma_wait<1>();
          release_values(n, slab - 1, last);
        }
      }
    }
  }

  /// O += P·V of the other consumer's tile n, to its completion. kBehindScores: behind S of tile n + 1, whose last
  /// chunk is in flight.
  template <bool kBehindScores>
  __device__ __forceinline__ void add_values_of_other(int n, int scores_flag, bool last) {
    const int other = 1 - number_, flag = flags(n);
    begin_tile(n, flag);
    const std::uint32_t full = base_ + S::kWeightsFull + 8 * kPieces * other, parity = n / 2 & 1;
    ptx::mbarrier_wait(full, parity);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float2 moved = references(other)[place_.row() + 8 * r];
      reference_[r] = moved.x;
      factor_[r] = moved.y;
    }
    const bool fresh = is_fresh(flag);
    rescale(fresh);
    const int first_stage = S::value_stage(n, last);
    std::uint32_t weights = base_ + S::kWeights + S::kWeightBytes * other, values = values_of_mine();
    ptx::forget(weights);
    ptx::forget(values);
    await_values(n, 0);
#pragma unroll
    for (int slab = 0; slab < S::kValueSlabs; ++slab) {
      constexpr int kSlabs = S::kValueSlabs / kPieces;
      if (slab > 0 && slab % kSlabs == 0) ptx::mbarrier_wait(full + 8 * (slab / kSlabs), parity);
      multiply(weights, values, slab, S::stage(first_stage, slab), fresh);
      if (slab + 1 < S::kValueSlabs) await_values(n, slab + 1);
      ptx::wgmma_wait<1>();
      if (slab > 0) {
        release_values(n, slab - 1, last);
      } else if (kBehindScores) {
        finish_scores(n + 1, scores_flag);
      }
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) sum_[r] = sums(other)[place_.row() + 8 * r];
    ptx::wgmma_wait<0>();
    release_values(n, S::kValueSlabs - 1, last);
    finish_tile(n, flag);
  }

  __device__ __forceinline__ void await_values(int n, int slab) const {
    ptx::mbarrier_wait(base_ + S::kValuesFull + S::value_barrier(n, slab), S::value_parity(n));
  }

  /// Starts O (+)= P[:, the slab's keys] · V of a slab, 16 keys at a time. P is in shared memory, or (`own`) that of
  /// the piece that the slab belongs to in registers.
  __device__ __forceinline__ void multiply(std::uint32_t weights, std::uint32_t values, int slab, int stage,
                                           bool fresh) {
    constexpr int kInChunk = kChunk / 16;  // steps in 64 keys, a row of P's atoms
    ptx::wgmma_fence();
#pragma unroll
    for (int k = 0; k < kSteps; ++k) {
      const int step = kSteps * slab + k;
      ptx::wgmma<T, kColumns, Major::k, Major::mn>(
          o_, ptx::descriptor(weights, 16, 1024) + (step / kInChunk * (kRows * 128) + step % kInChunk * 32) / 16,
          values_of_step(values, stage, k), step > 0 || !fresh);
    }
    ptx::wgmma_commit();
  }
  __device__ __forceinline__ void multiply(const std::uint32_t (&own)[kStepsOfPiece][4], std::uint32_t values, int slab,
                                           int stage, bool fresh) {
    ptx::wgmma_fence();
#pragma unroll
    for (int k = 0; k < kSteps; ++k) {
      const int step = kSteps * slab + k;
      ptx::wgmma<T, kColumns, Major::mn>(o_, own[step % kStepsOfPiece], values_of_step(values, stage, k),
                                         step > 0 || !fresh);
    }
    ptx::wgmma_commit();
  }
  /// The descriptor of 16 of a slab's keys: of both CTAs, or of one.
  [[nodiscard]] __device__ __forceinline__ static std::uint64_t values_of_step(std::uint32_t values, int stage, int k) {
    constexpr int kChunkBytes = S::kHalfSlabKeys * 128;
    return ptx::descriptor(values, kChunkBytes, S::kHalfSlabKeys == 16 ? 1024 : kChunks * 1024) +
           (stage * S::kStageBytes + k * kChunks * kChunkBytes) / 16;
  }
  [[nodiscard]] __device__ __forceinline__ std::uint32_t values_of_mine() const {
    return base_ + S::kRing + place_.chunk * S::kHalfSlabKeys * 128;
  }

  /// Whether O holds nothing yet.
  [[nodiscard]] __device__ __forceinline__ bool is_fresh(int flag) const {
    return (flag & Tile::kFirst) != 0 && call_.init;
  }

  __device__ __forceinline__ void begin_tile(int n, int flag) {
    if ((flag & Tile::kFirst) != 0 && !call_.init) load_state<kColumns>(call_, tiles_.known(n), place_, o_);
  }
  /// A normalised O with lse x is one with reference x / scale and sum 1.
  __device__ __forceinline__ void begin_rows(int n) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      reference_[r] = call_.init ? kNothing : load_reference(call_, RowPlace(call_, tiles_.known(n), place_, r));
      sum_[r] = reference_[r] == kNothing ? 0.0F : 1.0F;
    }
  }

  __device__ __forceinline__ void mask(int n) {
    const Tile tile = tiles_.known(n);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = place_.block_row() + 8 * r;
      const bool covered = row >= tile.row_begin && row < tile.row_end;
      const int begin = max(0, row + tile.low), end = covered ? min(tile.keys, row + tile.high) : 0;
      const unsigned seen = max(0, end - begin);
      const int first = 2 * place_.quad() - begin;
#pragma unroll
      for (int i = 0; i < kTileKeys / 8; ++i) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          if (static_cast<unsigned>(8 * i + e + first) >= seen) s_[4 * i + 2 * r + e] = kNothing;
        }
      }
    }
  }

  /// The rows' maxima of S, the reference that follows from them, and what O is to be multiplied by.
  __device__ __forceinline__ void move_reference() {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float most[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) most[i] = fmaxf(s_[4 * i + 2 * r], s_[4 * i + 2 * r + 1]);
#pragma unroll
      for (int i = 4; i < kTileKeys / 8; ++i) {
        most[i % 4] = fmaxf(most[i % 4], fmaxf(s_[4 * i + 2 * r], s_[4 * i + 2 * r + 1]));
      }
      float maximum = fmaxf(fmaxf(most[0], most[1]), fmaxf(most[2], most[3]));
      maximum = fmaxf(maximum, __shfl_xor_sync(0xffffffffU, maximum, 1));
      maximum = fmaxf(maximum, __shfl_xor_sync(0xffffffffU, maximum, 2));
      top_ = fmaxf(top_, maximum);
      const float moved = (maximum - reference_[r]) * call_.unit > kSlack ? maximum : reference_[r];
      factor_[r] = moved == reference_[r] ? 1.0F : ptx::exp2_approximate((reference_[r] - moved) * call_.unit);
      reference_[r] = moved;
      if (place_.quad() == 0) references(number_)[place_.row() + 8 * r] = {reference_[r], factor_[r]};
    }
  }

  /// P of a piece's keys to shared memory, in atoms of 8 rows × 64 keys; their sums are added.
  __device__ __forceinline__ void write_weights(int piece, std::uint32_t weights, float (&sum)[2],
                                                std::uint32_t (&own)[kStepsOfPiece][4]) {
    constexpr int kBlocks = kTileKeys / 8 / kPieces;  // of 8 keys
    float offset[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) offset[r] = reference_[r] == kNothing ? 0.0F : reference_[r] * call_.unit;
    const int row = place_.warp() * 16 + place_.lane() % 16;
#pragma unroll
    for (int block = kBlocks * piece; block < kBlocks * (piece + 1); block += 2) {
      std::uint32_t(&pairs)[4] = own[(block - kBlocks * piece) / 2];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int r = i % 2;
        float* const e = s_ + 4 * (block + i / 2) + 2 * r;
        e[0] = ptx::exp2_approximate(fmaf(e[0], call_.unit, -offset[r]));
        e[1] = ptx::exp2_approximate(fmaf(e[1], call_.unit, -offset[r]));
        sum[r] += e[0] + e[1];
        pairs[i] = ptx::pack<T>(e[0], e[1]);
      }
      const int column = block % 8 + place_.lane() / 16;  // in the atom, of 16 bytes
      ptx::store_matrices(weights + block / 8 * (kRows * 128) + row * 128 + ((column ^ row % 8) << 4), pairs);
    }
  }

  __device__ __forceinline__ void write_sums(float (&sum)[2]) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      sum[r] += __shfl_xor_sync(0xffffffffU, sum[r], 1);
      sum[r] += __shfl_xor_sync(0xffffffffU, sum[r], 2);
      sum_[r] = sum_[r] * factor_[r] + sum[r];
      if (place_.quad() == 0) sums(number_)[place_.row() + 8 * r] = sum_[r];
    }
  }

  __device__ __forceinline__ void rescale(bool fresh) {
    if (!fresh && __any_sync(0xffffffffU, factor_[0] != 1.0F || factor_[1] != 1.0F)) {
      ptx::pin(o_);
#pragma unroll
      for (int i = 0; i < kColumns / 2; ++i) o_[i] *= factor_[i / 2 % 2];
    }
  }

  /// After P·V of tile n: the item's end, if it is that. The next S may be in flight, O is complete.
  __device__ __forceinline__ void finish_tile(int n, int flag) {
    if ((flag & Tile::kLast) != 0) {
      ptx::pin(o_);
      const Tile tile = tiles_.known(n);
      store_state<T, kColumns>(call_, tile, place_, o_, reference_, sum_);
      if (call_.max_logit != nullptr) raise_max_logit(call_, tile, top_, sum_);
      top_ = kNothing;
    }
  }

  [[nodiscard]] __device__ __forceinline__ float2* references(int consumer) const {
    return reinterpret_cast<float2*>(memory_ + S::kReference) + kRows * consumer;
  }
  [[nodiscard]] __device__ __forceinline__ float* sums(int consumer) const {
    return reinterpret_cast<float*>(memory_ + S::kSum) + kRows * consumer;
  }

  const ForwardCall& call_;
  std::uint8_t* memory_;
  TileReader<S> tiles_;
  std::uint32_t base_;
  int number_;
  ThreadPlace place_;
  float o_[kColumns / 2], s_[kTileKeys / 2];
  float reference_[2] = {kNothing, kNothing}, sum_[2] = {0, 0}, factor_[2] = {1, 1};
  float top_ = kNothing;  ///< the greatest S of the item so far
};

}  // namespace rotunda::sm90::wide
