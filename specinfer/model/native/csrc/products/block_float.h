// Products in block floating point: bfloat16 models on processors without bfloat16 products.
//
// AVX2 multiplies eight pairs of float32 per instruction, but sixteen pairs of 16-bit integers. So weights are stored as
// 13-bit integers with a scale per column, in as many bytes as bfloat16; activations, in blocks of 64 along k, as 12-bit
// integers with a scale per block. A block's sum is exact:
//
//   |sum| <= 64 * 8160 * 4095 < 2^31
//
// Rounding: activations to 1/4095 of their block's maximum, which is at least as precise over a block as bfloat16 (to which
// processors with bfloat16 products round them), usually four times as precise; weights below 1/32 of their column's
// maximum to 1/8192 of that maximum; all other weights keep their eight bits. Effect on logits:
// benchmarks/tried.md#block-float.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "products/whole_numbers.h"

namespace specinfer {

inline constexpr int WEIGHT_BITS = 13;
inline constexpr float LARGEST_ACTIVATION = 4095;

// A step has two numbers. A row of activations has, per block of SPAN steps, as many units, then the block's scale.
struct BlockFloat : Headless {
  static inline constexpr int S = 2, PARTS = 1, SPAN = 32;
  static inline constexpr bool UNROLLS = false;
  using Sum = Words;
  using Unit = uint32_t;
  static constexpr int units(int steps) { return (steps + SPAN - 1) / SPAN * (SPAN + 1); }
  static Sum begin(const float*, bool) { return no_bits(); }
  static Words part(Words w, int) { return w; }
  static Sum madd(Sum sums, Words w, const Unit& a, int) { return dot_shorts(sums, w, a); }
  static void end(float* p, Sum sums, const Unit* block, NoHead, bool go_on) {
    float scale;
    std::memcpy(&scale, block + SPAN, sizeof scale);
    store(p, fma(to_floats(sums), spread(scale), go_on ? load(p) : zeros()));
  }
  static void finish(float* p, const float* scale) { store(p, mul(load(p), load(scale))); }
};

// Returns the scale of a row of weights: a power of two, so that scaling is exact; NaN if a weight is infinite or NaN, so
// that all results of the row are NaN.
inline float weight_scale(const uint16_t* weights, int k) {
  uint16_t bits = 0;  // magnitudes have the order of their bits; NaN is above all
  for (int i = 0; i < k; ++i) bits = std::max<uint16_t>(bits, weights[i] & 0x7FFF);
  const float largest = from_bf16(bits);
  if (!std::isfinite(largest)) return NAN;
  return std::ldexp(1.0f, std::ilogb(std::max(largest, 0x1p-88f)) + 1 - WEIGHT_BITS);
}

}  // namespace specinfer
