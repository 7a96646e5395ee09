// Which instruction sets the kernel is compiled for; include before any Highway header.
#pragma once

// Fixed vector lengths only: tiles keep vectors in arrays, which scalable ones cannot be in. SSSE3 and AVX3_DL add
// nothing here over their neighbours. (The names are Highway's; it expands them when it reads this.)
#define HWY_DISABLED_TARGETS (HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV | HWY_SSSE3 | HWY_AVX3_DL)
