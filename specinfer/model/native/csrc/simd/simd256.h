// Sixteen numbers at a time, as pairs of AVX2 vectors (with FMA and F16C). simd512.h has the same names for AVX-512.
// simd.h includes one of both.
#pragma once
#include <immintrin.h>

#include <algorithm>
#include <cstdint>

namespace specinfer {

inline constexpr int SUMS = 4;      // pairs of vectors of sums that fit in registers with two pairs of factors
inline constexpr int ROWS = 6;      // rows at a time, of keys or a tile: as many sums fit with one pair
inline constexpr int WIDE = 2;      // pairs of vectors of a wide tile
inline constexpr int UNROLLED = 2;  // steps per turn of a loop, to save its instructions
inline constexpr int BLOCK_VECTORS = 1;  // pairs of vectors of a tile of quantised blocks,
inline constexpr int BLOCK_ROWS = 6;     // and rows that are multiplied with it at a time

struct Floats {
  __m256 low, high;
};
struct Words {  // sixteen times 32 bits
  __m256i low, high;
};

// ---------------------------------------------------------------------------------- numbers

inline Floats zeros() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
inline Floats spread(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
inline Floats load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
inline void store(float* p, Floats x) { _mm256_storeu_ps(p, x.low), _mm256_storeu_ps(p + 8, x.high); }
inline void stream(float* p, Floats x) { _mm256_stream_ps(p, x.low), _mm256_stream_ps(p + 8, x.high); }
inline Floats add(Floats a, Floats b) { return {_mm256_add_ps(a.low, b.low), _mm256_add_ps(a.high, b.high)}; }
inline Floats sub(Floats a, Floats b) { return {_mm256_sub_ps(a.low, b.low), _mm256_sub_ps(a.high, b.high)}; }
inline Floats mul(Floats a, Floats b) { return {_mm256_mul_ps(a.low, b.low), _mm256_mul_ps(a.high, b.high)}; }
inline Floats div(Floats a, Floats b) { return {_mm256_div_ps(a.low, b.low), _mm256_div_ps(a.high, b.high)}; }
inline Floats fma(Floats a, Floats b, Floats c) {
  return {_mm256_fmadd_ps(a.low, b.low, c.low), _mm256_fmadd_ps(a.high, b.high, c.high)};
}
inline Floats fms(Floats a, Floats b, Floats c) {
  return {_mm256_fmsub_ps(a.low, b.low, c.low), _mm256_fmsub_ps(a.high, b.high, c.high)};
}
// b if a or b is NaN
inline Floats most(Floats a, Floats b) { return {_mm256_max_ps(a.low, b.low), _mm256_max_ps(a.high, b.high)}; }
inline Floats least(Floats a, Floats b) { return {_mm256_min_ps(a.low, b.low), _mm256_min_ps(a.high, b.high)}; }
inline Floats magnitude(Floats x) {
  const __m256 sign = _mm256_set1_ps(-0.0f);
  return {_mm256_andnot_ps(sign, x.low), _mm256_andnot_ps(sign, x.high)};
}
inline float sum(Floats x) {
  const __m256 eight = _mm256_add_ps(x.low, x.high);
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}
inline float largest(Floats x) {
  const __m256 eight = _mm256_max_ps(x.low, x.high);
  const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}
inline Floats nearest(Floats x) {
  constexpr int mode = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  return {_mm256_round_ps(x.low, mode), _mm256_round_ps(x.high, mode)};
}
// Limits x to exponents that `scale_by_power` supports; a NaN stays NaN.
inline Floats exponents(Floats x) { return most(spread(-127.0f), least(spread(128.0f), x)); }
inline __m256 power_of_two(__m256 n) {  // -127 gives 0, 128 infinity
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23));
}
inline Floats scale_by_power(Floats x, Floats n) { return mul(x, Floats{power_of_two(n.low), power_of_two(n.high)}); }

// ---------------------------------------------------------------------------------- some of the lanes

inline __m256i first_eight(int n) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
inline Floats load_first(const float* p, int n, Floats rest) {
  const __m256i low = first_eight(n), high = first_eight(n - 8);
  return {_mm256_blendv_ps(rest.low, _mm256_maskload_ps(p, low), _mm256_castsi256_ps(low)),
          _mm256_blendv_ps(rest.high, _mm256_maskload_ps(p + 8, high), _mm256_castsi256_ps(high))};
}
inline Floats keep_first(Floats x, int n) {
  return {_mm256_and_ps(x.low, _mm256_castsi256_ps(first_eight(n))),
          _mm256_and_ps(x.high, _mm256_castsi256_ps(first_eight(n - 8)))};
}
inline unsigned above(Floats a, Floats b) {
  return _mm256_movemask_ps(_mm256_cmp_ps(a.low, b.low, _CMP_GT_OQ)) |
         unsigned(_mm256_movemask_ps(_mm256_cmp_ps(a.high, b.high, _CMP_GT_OQ))) << 8;
}

// ---------------------------------------------------------------------------------- sixteen doubles

struct Doubles {
  __m256d part[4];
};
inline Doubles widen(Floats x) {
  return {{_mm256_cvtps_pd(_mm256_castps256_ps128(x.low)), _mm256_cvtps_pd(_mm256_extractf128_ps(x.low, 1)),
           _mm256_cvtps_pd(_mm256_castps256_ps128(x.high)), _mm256_cvtps_pd(_mm256_extractf128_ps(x.high, 1))}};
}
inline Doubles spread(double x) {
  const __m256d part = _mm256_set1_pd(x);
  return {{part, part, part, part}};
}
inline Doubles add(Doubles a, Doubles b) {
  for (int i = 0; i < 4; ++i) a.part[i] = _mm256_add_pd(a.part[i], b.part[i]);
  return a;
}
inline Doubles mul(Doubles a, Doubles b) {
  for (int i = 0; i < 4; ++i) a.part[i] = _mm256_mul_pd(a.part[i], b.part[i]);
  return a;
}
inline double sum(Doubles x) {
  double lanes[4];
  _mm256_storeu_pd(lanes, _mm256_add_pd(_mm256_add_pd(x.part[0], x.part[1]), _mm256_add_pd(x.part[2], x.part[3])));
  return (lanes[0] + lanes[1]) + (lanes[2] + lanes[3]);
}
inline void store_first(double* p, Doubles x, int n) {
  double all[LANES];
  for (int i = 0; i < 4; ++i) _mm256_storeu_pd((n >= LANES ? p : all) + 4 * i, x.part[i]);
  if (n < LANES) std::copy(all, all + n, p);
}

// ---------------------------------------------------------------------------------- bits

inline Words no_bits() { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
inline Words load_words(const void* p) {
  const __m256i* at = static_cast<const __m256i*>(p);
  return {_mm256_loadu_si256(at), _mm256_loadu_si256(at + 1)};
}
inline void store_words(void* p, Words x) {
  __m256i* at = static_cast<__m256i*>(p);
  _mm256_storeu_si256(at, x.low), _mm256_storeu_si256(at + 1, x.high);
}
inline Floats as_floats(Words x) { return {_mm256_castsi256_ps(x.low), _mm256_castsi256_ps(x.high)}; }
inline Words as_words(Floats x) { return {_mm256_castps_si256(x.low), _mm256_castps_si256(x.high)}; }
inline Words either(Words a, Words b) { return {_mm256_or_si256(a.low, b.low), _mm256_or_si256(a.high, b.high)}; }
inline Words masked(Words x, uint32_t mask) {
  const __m256i m = _mm256_set1_epi32(int(mask));
  return {_mm256_and_si256(x.low, m), _mm256_and_si256(x.high, m)};
}
inline Words up_16(Words x) { return {_mm256_slli_epi32(x.low, 16), _mm256_slli_epi32(x.high, 16)}; }
inline Words down_16(Words x) { return {_mm256_srli_epi32(x.low, 16), _mm256_srli_epi32(x.high, 16)}; }
// Shift both halves of every lane.
inline Words shorts_up(Words x, int n) { return {_mm256_slli_epi16(x.low, n), _mm256_slli_epi16(x.high, n)}; }
inline Words shorts_down(Words x, int n) { return {_mm256_srli_epi16(x.low, n), _mm256_srli_epi16(x.high, n)}; }

// ---------------------------------------------------------------------------------- other kinds of numbers

// Rounds to the nearest, ties to even; the upper half of each lane is the result.
inline __m256i rounded_to_bf16(__m256 x) {
  const __m256i bits = _mm256_castps_si256(x);
  const __m256i even = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  return _mm256_add_epi32(bits, _mm256_add_epi32(even, _mm256_set1_epi32(0x7FFF)));
}
inline void store_bf16(uint16_t* p, Floats x) {  // packing interleaves halves of 128 bits
  const Words upper = down_16({rounded_to_bf16(x.low), rounded_to_bf16(x.high)});
  const __m256i packed = _mm256_packus_epi32(upper.low, upper.high);
  _mm256_storeu_si256((__m256i*)p, _mm256_permute4x64_epi64(packed, 0xD8));
}

inline Floats load_halves(const void* p) {  // float16
  const __m128i* at = static_cast<const __m128i*>(p);
  return {_mm256_cvtph_ps(_mm_loadu_si128(at)), _mm256_cvtph_ps(_mm_loadu_si128(at + 1))};
}

inline Floats low_halves(Words x) {  // of sixteen float16 numbers, and the next sixteen
  return {_mm256_cvtph_ps(_mm256_castsi256_si128(x.low)), _mm256_cvtph_ps(_mm256_extracti128_si256(x.low, 1))};
}
inline Floats high_halves(Words x) { return low_halves({x.high, x.low}); }

// ---------------------------------------------------------------------------------- whole numbers

inline Words sub(Words a, Words b) { return {_mm256_sub_epi32(a.low, b.low), _mm256_sub_epi32(a.high, b.high)}; }
inline Words most(Words a, Words b) { return {_mm256_max_epi32(a.low, b.low), _mm256_max_epi32(a.high, b.high)}; }
inline int largest(Words x) {
  const __m256i eight = _mm256_max_epi32(x.low, x.high);
  const __m128i four = _mm_max_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
  const __m128i two = _mm_max_epi32(four, _mm_srli_si128(four, 8));
  return _mm_cvtsi128_si32(_mm_max_epi32(two, _mm_srli_si128(two, 4)));
}
inline int sum(Words x) {
  const __m256i eight = _mm256_add_epi32(x.low, x.high);
  const __m128i four = _mm_add_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
  const __m128i two = _mm_add_epi32(four, _mm_srli_si128(four, 8));
  return _mm_cvtsi128_si32(_mm_add_epi32(two, _mm_srli_si128(two, 4)));
}
inline Words add(Words a, Words b) { return {_mm256_add_epi32(a.low, b.low), _mm256_add_epi32(a.high, b.high)}; }
inline Words to_words(Floats x) { return {_mm256_cvtps_epi32(x.low), _mm256_cvtps_epi32(x.high)}; }  // to the nearest
inline void store_low_bytes(void* p, Words x) {  // numbers must fit in bytes; packing interleaves halves of 128 bits
  const __m256i shorts = _mm256_permute4x64_epi64(_mm256_packs_epi32(x.low, x.high), 0xD8);
  _mm_storeu_si128((__m128i*)p, _mm_packs_epi16(_mm256_castsi256_si128(shorts), _mm256_extracti128_si256(shorts, 1)));
}
inline Floats to_floats(Words x) { return {_mm256_cvtepi32_ps(x.low), _mm256_cvtepi32_ps(x.high)}; }

// Adds two products of 16 bits per lane: weights times the two activations in `a`. In assembly, because twelve vectors of
// sums, two of weights and two of products use all registers: otherwise the compiler takes one more and stores sums in
// memory in every step, which halves the speed.
inline Words dot_shorts(Words sums, Words weights, const uint32_t& a) {
  __m256i low, high;
  asm("vpbroadcastd %[a], %[high]\n\t"
      "vpmaddwd %[weights_low], %[high], %[low]\n\t"
      "vpmaddwd %[weights_high], %[high], %[high]\n\t"
      "vpaddd %[low], %[sums_low], %[sums_low]\n\t"
      "vpaddd %[high], %[sums_high], %[sums_high]"
      : [sums_low] "+x"(sums.low), [sums_high] "+x"(sums.high), [low] "=&x"(low), [high] "=&x"(high)
      : [a] "m"(a), [weights_low] "x"(weights.low), [weights_high] "x"(weights.high));
  return sums;
}
// Rounds to the nearest 16-bit integers.
inline __m256i shorts(Floats x) {  // packing interleaves halves of 128 bits
  return _mm256_permute4x64_epi64(_mm256_packs_epi32(_mm256_cvtps_epi32(x.low), _mm256_cvtps_epi32(x.high)), 0xD8);
}
inline void store_shorts(int16_t* p, Floats x) { _mm256_storeu_si256((__m256i*)p, shorts(x)); }

// ---------------------------------------------------------------------------------- bytes

inline Words spread(int32_t x) { return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }
inline Words signed_bytes(const void* p) {  // sixteen, widened to 32 bits
  const __m128i bytes = _mm_loadu_si128(static_cast<const __m128i*>(p));
  return {_mm256_cvtepi8_epi32(bytes), _mm256_cvtepi8_epi32(_mm_srli_si128(bytes, 8))};
}
inline Words unsigned_bytes(const void* p) {
  const __m128i bytes = _mm_loadu_si128(static_cast<const __m128i*>(p));
  return {_mm256_cvtepu8_epi32(bytes), _mm256_cvtepu8_epi32(_mm_srli_si128(bytes, 8))};
}
template <int N>
inline Words words_up(Words x) {
  return {_mm256_slli_epi32(x.low, N), _mm256_slli_epi32(x.high, N)};
}
// Returns a table's values for the low nibbles of all bytes; their high nibbles must be zero.
inline Words look_up(const int8_t* table, Words x) {
  const __m256i values = _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(table)));
  return {_mm256_shuffle_epi8(values, x.low), _mm256_shuffle_epi8(values, x.high)};
}

// Sums of products of weights in unsigned bytes up to MOST (signed bytes if MOST is -1) and signed bytes from -127 to 127, for
// two steps at a time, each with four weights and activations per lane. BEGINS: the sums start with a number instead of 0.
inline constexpr bool DOTS_WHOLE_BYTES = false;

template <int MOST>
struct ByteDot {
  using Sum = Words;
  static inline constexpr bool BEGINS = false;
  // |sum of a group in 16 bits| <= 8 * 2 * 15 * 127 < 2^15
  static inline constexpr bool SHORT = MOST > 0 && MOST <= 15;
  static Words begin(Words) { return no_bits(); }
  static Words end(Words sums) {
    if constexpr (!SHORT) return sums;
    return {ones(sums.low), ones(sums.high)};
  }
  static Words add(Words sums, Words first, Words second, const uint32_t& a, const uint32_t& b) {
    Words x = {add(sums.low, first.low, second.low, a, b), add(sums.high, first.high, second.high, a, b)};
    asm("" : "+x"(x.low), "+x"(x.high));  // otherwise the compiler stores products in memory to add them later
    return x;
  }

 private:
  static __m256i ones(__m256i shorts) { return _mm256_madd_epi16(shorts, _mm256_set1_epi16(1)); }
  static __m256i add(__m256i sums, __m256i first, __m256i second, uint32_t a, uint32_t b) {
    const __m256i x = _mm256_set1_epi32(int(a)), y = _mm256_set1_epi32(int(b));
    if constexpr (SHORT)
      return _mm256_add_epi16(_mm256_add_epi16(sums, _mm256_maddubs_epi16(first, x)), _mm256_maddubs_epi16(second, y));
    if constexpr (MOST < 0) {
      const __m256i p = _mm256_maddubs_epi16(_mm256_abs_epi8(first), _mm256_sign_epi8(x, first));
      const __m256i q = _mm256_maddubs_epi16(_mm256_abs_epi8(second), _mm256_sign_epi8(y, second));
      return _mm256_add_epi32(_mm256_add_epi32(sums, ones(p)), ones(q));
    }
    // |sum of four products| <= 4 * 63 * 127 < 2^15
    return _mm256_add_epi32(sums, ones(_mm256_add_epi16(_mm256_maddubs_epi16(first, x), _mm256_maddubs_epi16(second, y))));
  }
};

// ---------------------------------------------------------------------------------- bytes of a cache

// Return signed bytes as shorts: the low bytes of both halves of every lane, or the high ones.
inline Words low_bytes(Words x) {
  return {_mm256_srai_epi16(_mm256_slli_epi16(x.low, 8), 8), _mm256_srai_epi16(_mm256_slli_epi16(x.high, 8), 8)};
}
inline Words high_bytes(Words x) { return {_mm256_srai_epi16(x.low, 8), _mm256_srai_epi16(x.high, 8)}; }
// Moves one byte of every lane to another place; the other bytes are zero.
inline Words byte_to(Words x, int from, int to) {
  const __m128i down = _mm_cvtsi32_si128(8 * from), up = _mm_cvtsi32_si128(8 * to);
  const Words byte = masked({_mm256_srl_epi32(x.low, down), _mm256_srl_epi32(x.high, down)}, 0xFF);
  return {_mm256_sll_epi32(byte.low, up), _mm256_sll_epi32(byte.high, up)};
}

// Sums of four products of signed bytes, from -127 to 127, per lane; by halves, so that the sums of six rows fit in registers.
// A sum starts with OFFSET times the sum of the query's bytes.
inline constexpr int BYTE_KEY_PARTS = 2, BYTE_KEY_OFFSET = 0;
inline __m256i byte_key_part(Words keys, int which) { return which ? keys.high : keys.low; }
inline Words dot_byte_keys(Words sums, __m256i keys, const uint32_t& query, int which) {
  const __m256i signs = _mm256_sign_epi8(_mm256_set1_epi32(int(query)), keys);
  const __m256i pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(keys), signs);
  const __m256i four = _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
  if (which) sums.high = _mm256_add_epi32(sums.high, four);
  else sums.low = _mm256_add_epi32(sums.low, four);
  return sums;
}

}  // namespace specinfer
