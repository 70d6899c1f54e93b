// Activations as whole numbers of 16 bits.
#pragma once
#include <cstdint>
#include <cstring>

#include "simd/numbers.h"

namespace specinfer {

// Some activations over their scale, to the nearest whole numbers from -limit to limit; returns the scale. It is not a
// number, and so are all results, if one of them is not.
inline float to_whole_numbers(const Bf16::A* x, int n, float limit, void* out) {
  Words top = no_bits();  // magnitudes as their bits: what is not a number is above all others, and not lost
  for (int i = 0; i < n; i += LANES) top = most(top, masked(as_words(Bf16::load(x + i)), 0x7FFFFFFF));
  const uint32_t bits = largest(top);
  float largest;
  std::memcpy(&largest, &bits, sizeof largest);
  if (largest < 1e-30f) largest = 1e-30f;
  const Floats inverse = spread(limit / largest);
  for (int i = 0; i < n; i += LANES) store_shorts(static_cast<int16_t*>(out) + i, mul(Bf16::load(x + i), inverse));
  return largest / limit;
}

}  // namespace specinfer
