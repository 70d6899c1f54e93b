// Products of bytes: weights in eight bits by column, activations in eight bits by row, sums in whole numbers.
#pragma once
#include <immintrin.h>

#include <cstdint>
#include <vector>

#include "numbers.h"

namespace specinfer {

// Steps of four bytes: activations unsigned (128 is zero), weights signed.
struct Bytes {
  static inline constexpr int S = 4, ZERO = 128;
  using Sum = __m512i;
  static Sum zero() { return _mm512_setzero_si512(); }
  static Sum madd(Sum sum, __m512i w, Unit a) {
#ifdef __AVX512VNNI__
    return _mm512_dpbusd_epi32(sum, _mm512_set1_epi32(int(a)), w);
#else
    return sum;  // never called: see si_supports_bytes
#endif
  }
  static void keep(float* p, Sum sum) { _mm512_store_si512(p, sum); }
  static Sum take(const float* p) { return _mm512_load_si512(p); }
  // Sums to numbers; `excess` is what ZERO added to them, `scale` that of the weights.
  static void finish(float* p, const int32_t* excess, const float* scale, float row_scale) {
    const __m512i sum = _mm512_sub_epi32(_mm512_load_si512(p), _mm512_loadu_si512(excess));
    const __m512 factor = _mm512_mul_ps(_mm512_loadu_ps(scale), _mm512_set1_ps(row_scale));
    _mm512_store_ps(p, _mm512_mul_ps(_mm512_cvtepi32_ps(sum), factor));
  }
};

#ifdef __AVX512BF16__
// Rows of activations in bytes: each row has a scale of its own, so its result depends on nothing else.
struct ByteRows {
  std::vector<Unit> units;
  std::vector<float> scales;

  void fill(const Unit* a, int rows, int k) {
    units.resize(size_t(rows) * k / Bytes::S), scales.resize(rows);
    for (int r = 0; r < rows; ++r) {
      const uint16_t* x = reinterpret_cast<const uint16_t*>(a) + size_t(r) * k;
      uint8_t* out = reinterpret_cast<uint8_t*>(units.data()) + size_t(r) * k;
      __m512 most = _mm512_set1_ps(1e-20f);
      for (int i = 0; i < k; i += LANES) most = _mm512_max_ps(most, _mm512_abs_ps(Bf16::load(x + i)));
      scales[r] = _mm512_reduce_max_ps(most) / 127;
      const __m512 inverse = _mm512_set1_ps(1 / scales[r]);
      for (int i = 0; i < k; i += LANES) {
        const __m512i q = _mm512_cvtps_epi32(_mm512_mul_ps(Bf16::load(x + i), inverse));
        _mm_storeu_si128((__m128i*)(out + i), _mm512_cvtepi32_epi8(_mm512_add_epi32(q, _mm512_set1_epi32(Bytes::ZERO))));
      }
    }
  }
};
#endif

}  // namespace specinfer
