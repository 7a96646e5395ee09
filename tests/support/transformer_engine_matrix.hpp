// The rows of TransformerEngine's matrix of context-parallel cases (its test_attention_with_cp.py, version 2.20). b is
// 2 and s 4096 there, 1024 with d = 256.
#pragma once

#include <fmt/format.h>

#include <string>

namespace rotunda::testing {

struct MatrixRow {
  const char* name;
  int h_q, h_kv;            // in CI
  int full_h_q, full_h_kv;  // in the original
  int d, d_v;
  int window_left, window_right;  // -1: none
  const char* mask;               // problem keys beside the window
};

inline constexpr MatrixRow kMatrixRows[] = {
    {"causal", 4, 4, 12, 12, 128, 128, -1, -1, "mask=causal"},
    {"none", 4, 4, 12, 12, 128, 128, -1, -1, "mask=none"},
    {"causal_window", 2, 2, 12, 12, 128, 128, 512, 0, "mask=causal"},
    {"window", 2, 2, 12, 12, 128, 128, 512, 512, "mask=none"},
    {"gqa_8_causal", 8, 1, 32, 4, 128, 128, -1, -1, "mask=causal"},
    {"gqa_2_none", 4, 2, 12, 2, 128, 128, -1, -1, "mask=none"},
    {"short_window", 2, 2, 32, 32, 128, 128, 128, 0, "mask=causal"},
    {"gqa_2_window", 4, 2, 12, 2, 128, 128, 512, 512, "mask=none"},
    {"mla_causal", 2, 2, 128, 128, 192, 128, -1, -1, "mask=causal"},
    {"mla_none", 2, 2, 12, 12, 192, 128, -1, -1, "mask=none"},
    {"mla_causal_window", 2, 2, 12, 12, 192, 128, 512, 0, "mask=causal"},
    {"mla_window", 2, 2, 12, 12, 192, 128, 512, 512, "mask=none"},
    {"values_64_causal", 2, 2, 12, 12, 128, 64, -1, -1, "mask=causal"},
    {"gqa_8_d64", 8, 1, 64, 8, 64, 64, -1, -1, "mask=causal"},
    {"gqa_8_d64_sink_zero", 8, 1, 64, 8, 64, 64, -1, -1, "mask=causal sink=zero"},
    {"gqa_8_d64_sink_learnable", 8, 1, 64, 8, 64, 64, -1, -1, "mask=causal sink=learnable"},
    {"d64_window_sink_learnable", 2, 2, 64, 64, 64, 64, 128, 0, "mask=causal sink=learnable"},
    {"d256_causal", 2, 2, 16, 16, 256, 256, -1, -1, "mask=causal"},
    {"d256_causal_window", 2, 2, 16, 16, 256, 256, 512, 0, "mask=causal"},
    {"d512_causal_gqa", 2, 1, 8, 4, 512, 512, -1, -1, "mask=causal"},
    {"d512_none_gqa", 2, 1, 8, 4, 512, 512, -1, -1, "mask=none"},
    {"d512_causal", 2, 2, 8, 8, 512, 512, -1, -1, "mask=causal"},
    {"d512_none", 2, 2, 8, 8, 512, 512, -1, -1, "mask=none"},
};

/// The mask's keys with windows `shrink` times shorter.
[[nodiscard]] inline std::string mask_keys(const MatrixRow& row, int shrink) {
  if (row.window_left < 0) return row.mask;
  return fmt::format("{} window={},{}", row.mask, row.window_left / shrink, row.window_right / shrink);
}

}  // namespace rotunda::testing
