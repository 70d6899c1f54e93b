// The widest vectors that the processor has.
#pragma once

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__) && defined(__AVX512DQ__)
#include "simd512.h"
#else
#include "simd256.h"
#endif
