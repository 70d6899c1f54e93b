// Includes the widest vectors that the processor supports.
#pragma once

namespace specinfer {

inline constexpr int LANES = 16;
// Returns a mask with a bit for each of the first n lanes.
inline unsigned first_lanes(int n) { return n >= LANES ? 0xFFFF : (1u << n) - 1; }

}  // namespace specinfer

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__) && defined(__AVX512DQ__)
#include "simd/simd512.h"
#else
#include "simd/simd256.h"
#endif
