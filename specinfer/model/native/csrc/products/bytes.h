// Products of bytes: weights in eight bits by column, activations in eight bits by row, sums in whole numbers.
#pragma once
#include <cstdint>
#include <vector>

#include "simd/numbers.h"

namespace specinfer {

// Steps of four bytes.
struct Bytes : OneSpan {
  static inline constexpr int S = 4, PARTS = 1;
  static inline constexpr bool UNROLLS = true;
  using Sum = Words;
  using Unit = uint32_t;
  static Sum begin(const float* p, bool go_on) { return go_on ? load_words(p) : no_bits(); }
  static void end(float* p, Sum sums, const void*, NoHead, bool) { store_words(p, sums); }
  static Words part(Words w, int) { return w; }
  static Sum madd(Sum sums, Words w, const Unit& a, int) { return dot_bytes(sums, w, a); }
  // Sums to numbers; `excess` is what BYTE_ZERO added to them, `scale` that of the weights.
  static void finish(float* p, const int32_t* excess, const float* scale, float row_scale) {
    const Words sums = sub(load_words(p), load_words(excess));
    const Floats factor = mul(load(scale), spread(row_scale));
    store(p, mul(to_floats(sums), factor));
  }
};

// Rows of activations in bytes: each row has a scale of its own, so its result depends on nothing else.
struct ByteRows {
  std::vector<Bytes::Unit> units;
  std::vector<float> scales;

  void fill(const Bf16::A* activations, int rows, int k) {
    units.resize(size_t(rows) * k / Bytes::S), scales.resize(rows);
    for (int r = 0; r < rows; ++r) {
      const Bf16::A* x = activations + size_t(r) * k;
      uint8_t* out = reinterpret_cast<uint8_t*>(units.data()) + size_t(r) * k;
      Floats top = spread(1e-20f);
      for (int i = 0; i < k; i += LANES) top = most(top, magnitude(Bf16::load(x + i)));
      scales[r] = largest(top) / 127;
      const Floats inverse = spread(1 / scales[r]);
      for (int i = 0; i < k; i += LANES) store_bytes(out + i, mul(Bf16::load(x + i), inverse));
    }
  }
};

}  // namespace specinfer
