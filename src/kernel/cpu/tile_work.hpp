// One task of the cpu kernel, as its SIMD code gets it. forward.cpp and backward.cpp are compiled once per instruction
// set and pick the best one at run time; these functions are safe to call from several threads with scratch of their
// own.
#pragma once

#include <atomic>
#include <cmath>
#include <string>

#include "kernel/cpu/tile_sizes.hpp"
#include "kernel/cpu/work_list.hpp"
#include "kernel/kernel.hpp"

namespace rotunda::cpu {

/// scale·log2(e), which turns scores into exponents of 2, for float64 scores and, in two parts, for fp32 ones: a float
/// alone would be off by 2^-25 of each exponent, where lse is subtracted only afterwards. All have the sign of scale
/// and none is 0, so that infinite scores stay infinite.
struct ScoreScale {
  double factor;
  float high, low;

  explicit ScoreScale(double scale) {
    constexpr double smallest = 0x1p-126, largest = 0x1p+126;
    const double size = std::fmin(std::fmax(std::fabs(scale * 1.4426950408889634), smallest), largest);
    factor = scale < 0 ? -size : size;
    high = std::nextafter(static_cast<float>(size), 0.0F);
    low = static_cast<float>(std::fmax(size - static_cast<double>(high), smallest));
    if (scale < 0) {
      high = -high;
      low = -low;
    }
  }
};

/// All slices of a query tile for the heads of a unit: state in, state or result out.
void forward_tile(const ForwardArgs& args, const TileSizes& sizes, const QueryTile& tile, const HeadUnit& unit,
                  const ForwardScratch& scratch);

/// What the chunks of a call share: whose turn it is to add to dq, for each [batch][query head][tile].
struct BackwardShared {
  const KeyChunks& work;
  std::atomic<int>* turns;
};

/// Everything that one chunk of keys takes part in, for one KV head. Adds to dq in the order of chunks, so it waits for
/// chunks of lower tasks.
void backward_chunk(const BackwardArgs& args, const TileSizes& sizes, const KeyChunk& chunk, const HeadUnit& unit,
                    const BackwardShared& shared, const BackwardScratch& scratch);

/// "AVX2, 8 lanes"
[[nodiscard]] std::string instruction_set();

}  // namespace rotunda::cpu
