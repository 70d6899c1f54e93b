// Number kinds of the kernels: what a step of a dot product is in bfloat16 and in float32.
#pragma once
#include <immintrin.h>

#include <cstdint>
#include <cstring>

namespace specinfer {

inline constexpr int LANES = 16;
inline constexpr int BLOCK = 16;  // tokens per cache block = lanes of a vector
using Unit = uint32_t;     // one step of an activation: two bfloat16 or one float32

// ---------------------------------------------------------------------------------- number kinds

inline uint16_t to_bf16(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  return uint16_t((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
}
inline float from_bf16(uint16_t x) {
  uint32_t bits = uint32_t(x) << 16;
  float y;
  std::memcpy(&y, &bits, 4);
  return y;
}

#ifdef __AVX512BF16__
struct Bf16 {
  using T = uint16_t;
  using Sum = __m512;
  static inline constexpr int S = 2;
  static Sum zero() { return _mm512_setzero_ps(); }
  static void keep(float* p, Sum sum) { _mm512_store_ps(p, sum); }
  static Sum take(const float* p) { return _mm512_load_ps(p); }
  static __m512 load(const T* p) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)p)), 16));
  }
  static __m512 madd(__m512 acc, __m512i w, Unit a) {
    return _mm512_dpbf16_ps(acc, (__m512bh)_mm512_set1_epi32(int(a)), (__m512bh)w);
  }
  // Element `parity` of each pair in `from`, put at place `to` of a pair of zeros.
  static __m512i pick(__m512i from, int parity, int to) {
    const __m512i x = parity ? _mm512_srli_epi32(from, 16) : _mm512_and_si512(from, _mm512_set1_epi32(0xFFFF));
    return to ? _mm512_slli_epi32(x, 16) : x;
  }
  static void store(T* p, __m512 x) { _mm256_storeu_si256((__m256i*)p, (__m256i)_mm512_cvtneps_pbh(x)); }
  static T from_float(float x) { return to_bf16(x); }
  static float to_float(T x) { return from_bf16(x); }
};
#endif

struct F32 {
  using T = float;
  using Sum = __m512;
  static inline constexpr int S = 1;
  static Sum zero() { return _mm512_setzero_ps(); }
  static void keep(float* p, Sum sum) { _mm512_store_ps(p, sum); }
  static Sum take(const float* p) { return _mm512_load_ps(p); }
  static __m512 madd(__m512 acc, __m512i w, Unit a) {
    return _mm512_fmadd_ps(_mm512_castsi512_ps(_mm512_set1_epi32(int(a))), _mm512_castsi512_ps(w), acc);
  }
  static __m512i pick(__m512i from, int, int) { return from; }
  static void store(T* p, __m512 x) { _mm512_storeu_ps(p, x); }
  static T from_float(float x) { return x; }
  static float to_float(T x) { return x; }
};

inline constexpr float LOG2_E = 1.44269504f;

// 2 to the power of 16 floats: 2^n * p(f), n the nearest integer and p of degree 6; relative error below 2e-7.
inline __m512 vexp2(__m512 x) {
  const __m512 n = _mm512_roundscale_ps(x, 0), f = _mm512_sub_ps(x, n);
  __m512 p = _mm512_set1_ps(1.5403530e-4f);  // ln(2)^k / k! from k = 6 down to 0
  for (float c : {1.3333558e-3f, 9.6181291e-3f, 5.5504109e-2f, 0.24022651f, 0.69314718f, 1.0f})
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(c));
  return _mm512_scalef_ps(p, n);
}

inline __m512 vexp(__m512 x) { return vexp2(_mm512_mul_ps(x, _mm512_set1_ps(LOG2_E))); }

}  // namespace specinfer
