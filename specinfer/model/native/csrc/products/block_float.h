// Products in block floating point: bfloat16 models on processors that multiply no bfloat16.
//
// Why: AVX2 multiplies eight pairs of float32 per instruction, and sixteen pairs of whole numbers with 16 bits. So weights are
// kept as whole numbers of 13 bits with a scale per column, as many bytes as bfloat16 has; and activations, 64 along k at
// a time, as whole numbers of 12 bits with a scale per block. A block's sum is exact:
//
//   |sum| <= 64 * 8160 * 4095 < 2^31
//
// What is rounded: activations to 1/4095 of the largest of their block, which is at least as near, over a block, as
// bfloat16 (what processors that multiply bfloat16 round them to), usually four times nearer; and weights below 1/32 of
// the largest of their column, to 1/8192 of it; the eight bits of every other weight are kept. What that does
// to logits: docs/performance.md#block-float.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "products/whole_numbers.h"

namespace specinfer {

inline constexpr int WEIGHT_BITS = 13;
inline constexpr float LARGEST_ACTIVATION = 4095;

// Steps of two numbers. A row of activations: per block of SPAN steps as many units, then its scale.
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

// The scale of a row of weights: a power of two, so that it rounds nothing. It is not a number, and so are all results of
// the row, if some of its weights are infinite or not numbers.
inline float weight_scale(const uint16_t* weights, int k) {
  uint16_t bits = 0;  // magnitudes are ordered as their bits are, what is not a number being above all
  for (int i = 0; i < k; ++i) bits = std::max<uint16_t>(bits, weights[i] & 0x7FFF);
  const float largest = from_bf16(bits);
  if (!std::isfinite(largest)) return NAN;
  return std::ldexp(1.0f, std::ilogb(std::max(largest, 0x1p-88f)) + 1 - WEIGHT_BITS);
}

}  // namespace specinfer
