// Which instruction sets SIMD code is compiled for; include before any Highway header.
#pragma once

// Fixed vector lengths only: tiles keep vectors in arrays, which scalable ones cannot be in. SSSE3 and AVX3_DL add
// nothing here over their neighbours. (The names are Highway's; it expands them when it reads this.)
#define ROTUNDA_ODD_TARGETS (HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV | HWY_SSSE3 | HWY_AVX3_DL)
#ifdef __arm__  // NEON of 32-bit ARM has no vectors of doubles
#define ROTUNDA_NEVER_TARGETS (ROTUNDA_ODD_TARGETS | HWY_NEON | HWY_NEON_WITHOUT_AES)
#else
#define ROTUNDA_NEVER_TARGETS ROTUNDA_ODD_TARGETS
#endif
#ifdef ROTUNDA_FEW_TARGETS  // sanitizer builds: the baseline and AVX2, since each set costs a compilation
#define HWY_DISABLED_TARGETS (ROTUNDA_NEVER_TARGETS | HWY_SSE4 | HWY_AVX3)
#else
#define HWY_DISABLED_TARGETS ROTUNDA_NEVER_TARGETS
#endif
