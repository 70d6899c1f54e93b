// Activations as whole numbers of 16 bits.
#pragma once
#include <cstdint>
#include <cstring>

#include "simd/numbers.h"

namespace specinfer {

// Bits of magnitudes: what is not a number is above all others, and not lost.
inline Words magnitudes(Floats x) { return masked(as_words(x), 0x7FFFFFFF); }

// What makes numbers of these magnitudes whole ones from -limit to limit. It is not a number, and so are all results, if one
// of them is not.
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

// Some activations over their scale, to the nearest whole numbers of 16 bits; returns the scale.
inline float to_whole_numbers(const float* x, int n, float limit, void* out) {
  Words top = no_bits();
  for (int i = 0; i < n; i += LANES) top = most(top, magnitudes(load(x + i)));
  const WholeScale whole(top, limit);
  for (int i = 0; i < n; i += LANES) store_shorts(static_cast<int16_t*>(out) + i, mul(load(x + i), whole.inverse));
  return whole.scale;
}

}  // namespace specinfer
