// Sixteen numbers at a time, with AVX-512. simd256.h has the same names for AVX2; simd.h includes one of both.
#pragma once
#include <immintrin.h>

#include <cstdint>

namespace specinfer {

inline constexpr int SUMS = 24;     // vectors of sums that fit in registers with their factors
inline constexpr int ROWS = 6;      // rows at a time, of keys or a wide tile
inline constexpr int WIDE = 4;      // vectors of a wide tile
inline constexpr int UNROLLED = 1;  // steps per turn of a loop
inline constexpr int BLOCK_VECTORS = 2;  // vectors of a tile of quantised blocks,
inline constexpr int BLOCK_ROWS = 8;    // and rows that are multiplied with it at a time

using Floats = __m512;
using Words = __m512i;  // sixteen times 32 bits

// ---------------------------------------------------------------------------------- numbers

inline Floats zeros() { return _mm512_setzero_ps(); }
inline Floats spread(float x) { return _mm512_set1_ps(x); }
inline Floats load(const float* p) { return _mm512_loadu_ps(p); }
inline void store(float* p, Floats x) { _mm512_storeu_ps(p, x); }
inline void stream(float* p, Floats x) { _mm512_stream_ps(p, x); }  // past the caches; p: a multiple of 64
inline Floats add(Floats a, Floats b) { return _mm512_add_ps(a, b); }
inline Floats sub(Floats a, Floats b) { return _mm512_sub_ps(a, b); }
inline Floats mul(Floats a, Floats b) { return _mm512_mul_ps(a, b); }
inline Floats div(Floats a, Floats b) { return _mm512_div_ps(a, b); }
inline Floats fma(Floats a, Floats b, Floats c) { return _mm512_fmadd_ps(a, b, c); }
inline Floats fms(Floats a, Floats b, Floats c) { return _mm512_fmsub_ps(a, b, c); }
inline Floats most(Floats a, Floats b) { return _mm512_max_ps(a, b); }  // b if a or b is NaN
inline Floats least(Floats a, Floats b) { return _mm512_min_ps(a, b); }  // b if a or b is NaN
inline Floats magnitude(Floats x) { return _mm512_abs_ps(x); }
inline float sum(Floats x) { return _mm512_reduce_add_ps(x); }
inline float largest(Floats x) { return _mm512_reduce_max_ps(x); }
inline Floats nearest(Floats x) { return _mm512_roundscale_ps(x, 0); }
inline Floats exponents(Floats x) { return x; }  // `scale_by_power` supports all exponents
inline Floats scale_by_power(Floats x, Floats n) { return _mm512_scalef_ps(x, n); }

// ---------------------------------------------------------------------------------- some of the lanes

inline Floats load_first(const float* p, int n, Floats rest) {
  return _mm512_mask_loadu_ps(rest, __mmask16(first_lanes(n)), p);
}
inline Floats keep_first(Floats x, int n) { return _mm512_maskz_mov_ps(__mmask16(first_lanes(n)), x); }
inline unsigned above(Floats a, Floats b) { return _mm512_cmp_ps_mask(a, b, _CMP_GT_OQ); }

// ---------------------------------------------------------------------------------- sixteen doubles

struct Doubles {
  __m512d low, high;
};
inline Doubles widen(Floats x) {
  return {_mm512_cvtps_pd(_mm512_castps512_ps256(x)), _mm512_cvtps_pd(_mm512_extractf32x8_ps(x, 1))};
}
inline Doubles spread(double x) { return {_mm512_set1_pd(x), _mm512_set1_pd(x)}; }
inline Doubles add(Doubles a, Doubles b) { return {_mm512_add_pd(a.low, b.low), _mm512_add_pd(a.high, b.high)}; }
inline Doubles mul(Doubles a, Doubles b) { return {_mm512_mul_pd(a.low, b.low), _mm512_mul_pd(a.high, b.high)}; }
inline double sum(Doubles x) { return _mm512_reduce_add_pd(x.low) + _mm512_reduce_add_pd(x.high); }
inline void store_first(double* p, Doubles x, int n) {
  const unsigned valid = first_lanes(n);
  _mm512_mask_storeu_pd(p, __mmask8(valid), x.low);
  _mm512_mask_storeu_pd(p + 8, __mmask8(valid >> 8), x.high);
}

// ---------------------------------------------------------------------------------- bits

inline Words no_bits() { return _mm512_setzero_si512(); }
inline Words load_words(const void* p) { return _mm512_loadu_si512(p); }
inline void store_words(void* p, Words x) { _mm512_storeu_si512(p, x); }
inline Floats as_floats(Words x) { return _mm512_castsi512_ps(x); }
inline Words as_words(Floats x) { return _mm512_castps_si512(x); }
inline Words either(Words a, Words b) { return _mm512_or_si512(a, b); }
inline Words masked(Words x, uint32_t mask) { return _mm512_and_si512(x, _mm512_set1_epi32(int(mask))); }
inline Words up_16(Words x) { return _mm512_slli_epi32(x, 16); }
inline Words down_16(Words x) { return _mm512_srli_epi32(x, 16); }
// Shift both halves of every lane.
inline Words shorts_up(Words x, int n) { return _mm512_slli_epi16(x, n); }
inline Words shorts_down(Words x, int n) { return _mm512_srli_epi16(x, n); }

// ---------------------------------------------------------------------------------- other kinds of numbers

#ifdef __AVX512BF16__
inline Floats load_bf16(const uint16_t* p) {
  return as_floats(up_16(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)p))));
}
inline void store_bf16(uint16_t* p, Floats x) { _mm256_storeu_si256((__m256i*)p, (__m256i)_mm512_cvtneps_pbh(x)); }
#else
inline Words rounded_to_bf16(Floats x) {
  const Words bits = _mm512_castps_si512(x);
  const Words even = masked(down_16(bits), 1);
  return down_16(_mm512_add_epi32(bits, _mm512_add_epi32(even, _mm512_set1_epi32(0x7FFF))));
}
inline void store_bf16(uint16_t* p, Floats x) {
  _mm256_storeu_si256((__m256i*)p, _mm512_cvtepi32_epi16(rounded_to_bf16(x)));
}
#endif

inline Floats load_halves(const void* p) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)p)); }  // float16

inline Floats low_halves(Words x) { return _mm512_cvtph_ps(_mm512_castsi512_si256(x)); }  // of sixteen float16 numbers,
inline Floats high_halves(Words x) { return _mm512_cvtph_ps(_mm512_extracti64x4_epi64(x, 1)); }  // and the next sixteen

// ---------------------------------------------------------------------------------- whole numbers

inline Words sub(Words a, Words b) { return _mm512_sub_epi32(a, b); }
inline Words most(Words a, Words b) { return _mm512_max_epi32(a, b); }
inline int largest(Words x) { return _mm512_reduce_max_epi32(x); }
inline int sum(Words x) { return _mm512_reduce_add_epi32(x); }
inline Words add(Words a, Words b) { return _mm512_add_epi32(a, b); }
inline Floats to_floats(Words x) { return _mm512_cvtepi32_ps(x); }
inline Words to_words(Floats x) { return _mm512_cvtps_epi32(x); }  // to the nearest
inline void store_low_bytes(void* p, Words x) { _mm_storeu_si128((__m128i*)p, _mm512_cvtepi32_epi8(x)); }

// Adds two products of 16 bits per lane: weights times the two activations in `a`.
inline Words dot_shorts(Words sums, Words weights, uint32_t a) {
#ifdef __AVX512VNNI__
  return _mm512_dpwssd_epi32(sums, _mm512_set1_epi32(int(a)), weights);
#else
  return _mm512_add_epi32(sums, _mm512_madd_epi16(_mm512_set1_epi32(int(a)), weights));
#endif
}
// Rounds to the nearest 16-bit integers.
inline __m256i shorts(Floats x) { return _mm512_cvtsepi32_epi16(_mm512_cvtps_epi32(x)); }
inline void store_shorts(int16_t* p, Floats x) { _mm256_storeu_si256((__m256i*)p, shorts(x)); }

// ---------------------------------------------------------------------------------- bytes

inline Words spread(int32_t x) { return _mm512_set1_epi32(x); }
inline Words signed_bytes(const void* p) {  // sixteen, widened to 32 bits
  return _mm512_cvtepi8_epi32(_mm_loadu_si128(static_cast<const __m128i*>(p)));
}
inline Words unsigned_bytes(const void* p) { return _mm512_cvtepu8_epi32(_mm_loadu_si128(static_cast<const __m128i*>(p))); }
template <int N>
inline Words words_up(Words x) {
  return _mm512_slli_epi32(x, N);
}
// Returns a table's values for the low nibbles of all bytes; their high nibbles must be zero.
inline Words look_up(const int8_t* table, Words x) {
  return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(table))), x);
}

// Sums of products of weights in unsigned bytes up to MOST (signed bytes if MOST is -1) and signed bytes from -127 to 127, for
// two steps at a time, each with four weights and activations per lane. BEGINS: the sums start with a number instead of 0.
#ifdef __AVX512VNNI__
inline constexpr bool DOTS_WHOLE_BYTES = true;

template <int MOST>
struct ByteDot {
  using Sum = Words;
  static inline constexpr bool BEGINS = true;
  static Words begin(Words start) { return start; }
  static Words end(Words sums) { return sums; }
  static Words add(Words sums, Words first, Words second, const uint32_t& a, const uint32_t& b) {
    return _mm512_dpbusd_epi32(_mm512_dpbusd_epi32(sums, first, _mm512_set1_epi32(int(a))), second, _mm512_set1_epi32(int(b)));
  }
};
#else
inline constexpr bool DOTS_WHOLE_BYTES = false;

template <int MOST>
struct ByteDot {
  using Sum = Words;
  static inline constexpr bool BEGINS = true;
  static Words begin(Words start) { return start; }
  static Words end(Words sums) { return sums; }
  static Words add(Words sums, Words first, Words second, const uint32_t& a, const uint32_t& b) {
    const Words x = _mm512_set1_epi32(int(a)), y = _mm512_set1_epi32(int(b));
    if constexpr (MOST < 0)
      return _mm512_add_epi32(_mm512_add_epi32(sums, ones(signed_pairs(first, x))), ones(signed_pairs(second, y)));
    // |sum of four products| <= 4 * 63 * 127 < 2^15
    return _mm512_add_epi32(sums, ones(_mm512_add_epi16(_mm512_maddubs_epi16(first, x), _mm512_maddubs_epi16(second, y))));
  }

 private:
  static Words ones(Words shorts) { return _mm512_madd_epi16(shorts, _mm512_set1_epi16(1)); }
  static Words signed_pairs(Words w, Words a) {
    return _mm512_maddubs_epi16(_mm512_abs_epi8(w), _mm512_mask_sub_epi8(a, _mm512_movepi8_mask(w), no_bits(), a));
  }
};
#endif

// ---------------------------------------------------------------------------------- bytes of a cache

// Return signed bytes as shorts: the low bytes of both halves of every lane, or the high ones.
inline Words low_bytes(Words x) { return _mm512_srai_epi16(_mm512_slli_epi16(x, 8), 8); }
inline Words high_bytes(Words x) { return _mm512_srai_epi16(x, 8); }
// Moves one byte of every lane to another place; the other bytes are zero.
inline Words byte_to(Words x, int from, int to) {
  const Words byte = masked(_mm512_srl_epi32(x, _mm_cvtsi32_si128(8 * from)), 0xFF);
  return _mm512_sll_epi32(byte, _mm_cvtsi32_si128(8 * to));
}

// Sums of four products of signed bytes, from -127 to 127, per lane. A sum starts with OFFSET times the sum of the query's
// bytes: VNNI takes keys as unsigned bytes, plus 128.
inline constexpr int BYTE_KEY_PARTS = 1;
#ifdef __AVX512VNNI__
inline constexpr int BYTE_KEY_OFFSET = -128;
inline Words byte_key_part(Words keys, int) { return _mm512_xor_si512(keys, _mm512_set1_epi8(char(0x80))); }
inline Words dot_byte_keys(Words sums, Words keys, uint32_t query, int) {
  return _mm512_dpbusd_epi32(sums, keys, _mm512_set1_epi32(int(query)));
}
#else
inline constexpr int BYTE_KEY_OFFSET = 0;
inline Words byte_key_part(Words keys, int) { return keys; }
inline Words dot_byte_keys(Words sums, Words keys, uint32_t query, int) {
  const Words q = _mm512_set1_epi32(int(query));
  const Words signs = _mm512_mask_sub_epi8(q, _mm512_movepi8_mask(keys), no_bits(), q);
  const Words pairs = _mm512_maddubs_epi16(_mm512_abs_epi8(keys), signs);
  return _mm512_add_epi32(sums, _mm512_madd_epi16(pairs, _mm512_set1_epi16(1)));
}
#endif

}  // namespace specinfer
