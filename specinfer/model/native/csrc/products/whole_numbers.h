// Activations as 16-bit integers.
#pragma once
#include <cstdint>
#include <cstring>

#include "simd/numbers.h"

namespace specinfer {

// Returns the bits of magnitudes, in which NaN is above all numbers.
inline Words magnitudes(Floats x) { return masked(as_words(x), 0x7FFFFFFF); }

// Factor that maps numbers of at most these magnitudes to integers from -limit to limit. It is NaN, and so are all results,
// if a number is NaN.
struct WholeScale {
  float scale;
  Floats inverse;

  WholeScale(Words magnitudes, float limit) {
    const uint32_t bits = largest(magnitudes);
    float top;
    std::memcpy(&top, &bits, sizeof top);
    if (top < 1e-30f) top = 1e-30f;
    scale = top / limit, inverse = spread(limit / top);
  }
};

// Rounds activations over their scale to 16-bit integers; returns the scale.
inline float to_whole_numbers(const float* x, int n, float limit, void* out) {
  Words top = no_bits();
  for (int i = 0; i < n; i += LANES) top = most(top, magnitudes(load(x + i)));
  const WholeScale whole(top, limit);
  for (int i = 0; i < n; i += LANES) store_shorts(static_cast<int16_t*>(out) + i, mul(load(x + i), whole.inverse));
  return whole.scale;
}

}  // namespace specinfer
