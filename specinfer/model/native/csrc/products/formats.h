// Formats of matrices; quantised ones are blocks of GGUF, in the file's layout.
//
// A block has WEIGHTS numbers q of BITS bits, unsigned, with a scale d (float16). Blocks of 256 have an integer scale per
// GROUP of weights; some formats have a minimum per scale:
//
//   32 weights    d * (q - ZERO)               d * q + m
//   256 weights   d * scale * (q - ZERO)       d * scale * q - dmin * least
//
// A new format needs a struct here, a name in Storage (bindings.h) and a case in `with_format` (matrix.h).
#pragma once
#include <cstdint>
#include <cstring>

#include "simd/numbers.h"

namespace specinfer {

inline constexpr int MOST_WEIGHTS = 256;  // maximum weights of a block
inline constexpr int UNIT = 32;           // weights along k that are multiplied together

// A block of any format.
struct Block {
  uint8_t q[MOST_WEIGHTS];
  uint16_t d, dmin;   // float16; dmin: in blocks of 32, the minimum itself
  int8_t scale[16];
  uint8_t least[16];
};

inline uint16_t read_u16(const uint8_t* p) {
  uint16_t x;
  std::memcpy(&x, p, sizeof x);
  return x;
}

// Reads nibbles as blocks store them: the low nibbles of n bytes, then the high ones.
inline void read_nibbles(const uint8_t* from, int n, uint8_t* q) {
  for (int i = 0; i < n; ++i) q[i] = from[i] & 15, q[n + i] = from[i] >> 4;
}

// Adds bit i of 32 to number i at bit `to`.
inline void add_bits(const uint8_t* from, int to, uint8_t* q) {
  for (int i = 0; i < 32; ++i) q[i] |= (from[i / 8] >> i % 8 & 1) << to;
}

// Reads eight scales and eight minima of six bits from twelve bytes.
inline void read_scales_and_minima(const uint8_t* s, Block& b) {
  for (int j = 0; j < 4; ++j) {
    b.scale[j] = s[j] & 63, b.least[j] = s[j + 4] & 63;
    b.scale[j + 4] = (s[j + 8] & 15) | (s[j] >> 6) << 4, b.least[j + 4] = (s[j + 8] >> 4) | (s[j + 4] >> 6) << 4;
  }
}

// Values of formats with a TABLE.
inline constexpr int8_t IQ4_VALUES[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
inline constexpr int8_t FP4_VALUES[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};  // twice those of E2M1

// Defaults of the formats below.
struct SmallBlock {
  static inline constexpr int WEIGHTS = 32, GROUP = 32, ZERO = 0;
  static inline constexpr bool HAS_LEAST = false, TABLE = false, PAIRED = false;
  static inline constexpr const int8_t* VALUES = IQ4_VALUES;
};
struct LargeBlock : SmallBlock {
  static inline constexpr int WEIGHTS = 256;
};

struct Q4_0Blocks : SmallBlock {
  static inline constexpr int BYTES = 18, BITS = 4, ZERO = 8;
  static void read(const uint8_t* from, Block& b) { b.d = read_u16(from), read_nibbles(from + 2, 16, b.q); }
};

struct Q4_1Blocks : SmallBlock {
  static inline constexpr int BYTES = 20, BITS = 4;
  static inline constexpr bool HAS_LEAST = true;
  static void read(const uint8_t* from, Block& b) {
    b.d = read_u16(from), b.dmin = read_u16(from + 2), read_nibbles(from + 4, 16, b.q);
  }
};

struct Q5_0Blocks : SmallBlock {
  static inline constexpr int BYTES = 22, BITS = 5, ZERO = 16;
  static void read(const uint8_t* from, Block& b) {
    b.d = read_u16(from), read_nibbles(from + 6, 16, b.q), add_bits(from + 2, 4, b.q);
  }
};

struct Q5_1Blocks : SmallBlock {
  static inline constexpr int BYTES = 24, BITS = 5;
  static inline constexpr bool HAS_LEAST = true;
  static void read(const uint8_t* from, Block& b) {
    b.d = read_u16(from), b.dmin = read_u16(from + 2), read_nibbles(from + 8, 16, b.q), add_bits(from + 4, 4, b.q);
  }
};

struct Q8_0Blocks : SmallBlock {
  static inline constexpr int BYTES = 34, BITS = 8, ZERO = 128;
  static void read(const uint8_t* from, Block& b) {
    b.d = read_u16(from);
    for (int i = 0; i < 32; ++i) b.q[i] = from[2 + i] ^ 0x80;
  }
};

struct IQ4_NLBlocks : Q4_0Blocks {
  static inline constexpr int ZERO = 128;
  static inline constexpr bool TABLE = true;
};

// Returns 2 to the power of e in float16; too small becomes zero, too large infinity.
inline uint16_t half_power(int e) {
  if (e > 15) return 0x7C00;
  if (e >= -14) return uint16_t((e + 15) << 10);
  return e >= -24 ? uint16_t(1 << (e + 24)) : 0;
}

// Scales are powers of two in a byte.
struct MXFP4Blocks : SmallBlock {
  static inline constexpr int BYTES = 17, BITS = 4, ZERO = 128;
  static inline constexpr bool TABLE = true;
  static inline constexpr const int8_t* VALUES = FP4_VALUES;
  static void read(const uint8_t* from, Block& b) { b.d = half_power(from[0] - 128), read_nibbles(from + 1, 16, b.q); }
};

struct Q4_KBlocks : LargeBlock {
  static inline constexpr int BYTES = 144, BITS = 4;
  static inline constexpr bool HAS_LEAST = true;
  static void read(const uint8_t* from, Block& b) {
    b.d = read_u16(from), b.dmin = read_u16(from + 2), read_scales_and_minima(from + 4, b);
    for (int chunk = 0; chunk < 4; ++chunk) read_nibbles(from + 16 + 32 * chunk, 32, b.q + 64 * chunk);
  }
};

struct Q5_KBlocks : LargeBlock {
  static inline constexpr int BYTES = 176, BITS = 5;
  static inline constexpr bool HAS_LEAST = true;
  static void read(const uint8_t* from, Block& b) {
    b.d = read_u16(from), b.dmin = read_u16(from + 2), read_scales_and_minima(from + 4, b);
    for (int chunk = 0; chunk < 4; ++chunk) read_nibbles(from + 48 + 32 * chunk, 32, b.q + 64 * chunk);
    for (int i = 0; i < 256; ++i) b.q[i] |= (from[16 + i % 32] >> i / 32 & 1) << 4;
  }
};

struct Q6_KBlocks : LargeBlock {
  static inline constexpr int BYTES = 210, BITS = 6, GROUP = 16, ZERO = 32;
  static void read(const uint8_t* from, Block& b) {
    for (int half = 0; half < 2; ++half) read_nibbles(from + 64 * half, 64, b.q + 128 * half);
    for (int i = 0; i < 256; ++i) b.q[i] |= (from[128 + i / 128 * 32 + i % 32] >> i / 32 % 4 * 2 & 3) << 4;
    std::memcpy(b.scale, from + 192, 16), b.d = read_u16(from + 208);
  }
};

struct Q3_KBlocks : LargeBlock {
  static inline constexpr int BYTES = 110, BITS = 3, GROUP = 16, ZERO = 4;
  static void read(const uint8_t* from, Block& b) {
    for (int i = 0; i < 256; ++i) {
      const int two = from[32 + i / 128 * 32 + i % 32] >> i / 32 % 4 * 2 & 3, high = from[i % 32] >> i / 32 & 1;
      b.q[i] = uint8_t(two | high << 2);
    }
    const uint8_t* s = from + 96;  // low nibbles of 16 scales in eight bytes, their two high bits in four
    for (int j = 0; j < 16; ++j) {
      const int low = j < 8 ? s[j] & 15 : s[j - 8] >> 4, high = s[8 + j % 4] >> j / 4 * 2 & 3;
      b.scale[j] = int8_t((low | high << 4) - 32);
    }
    b.d = read_u16(from + 108);
  }
};

struct Q2_KBlocks : LargeBlock {
  static inline constexpr int BYTES = 84, BITS = 2, GROUP = 16;
  static inline constexpr bool HAS_LEAST = true, PAIRED = true;  // a scale and a minimum of four bits share a byte
  static void read(const uint8_t* from, Block& b) {
    for (int i = 0; i < 256; ++i) b.q[i] = from[16 + i / 128 * 32 + i % 32] >> i / 32 % 4 * 2 & 3;
    for (int j = 0; j < 16; ++j) b.scale[j] = from[j] & 15, b.least[j] = from[j] >> 4;
    b.d = read_u16(from + 80), b.dmin = read_u16(from + 82);
  }
};

struct IQ4_XSBlocks : LargeBlock {
  static inline constexpr int BYTES = 136, BITS = 4, ZERO = 128;
  static inline constexpr bool TABLE = true;
  static void read(const uint8_t* from, Block& b) {
    b.d = read_u16(from);
    const int high = read_u16(from + 2);
    for (int j = 0; j < 8; ++j) {
      b.scale[j] = int8_t(((from[4 + j / 2] >> j % 2 * 4 & 15) | (high >> 2 * j & 3) << 4) - 32);
      read_nibbles(from + 8 + 16 * j, 16, b.q + 32 * j);
    }
  }
};

inline float from_half(uint16_t x) { return _cvtsh_ss(x); }

// Dequantises a block of a file to WEIGHTS numbers.
template <class F>
void dequantise(const uint8_t* from, float* to) {
  Block b;
  F::read(from, b);
  const float d = from_half(b.d), least = F::HAS_LEAST ? from_half(b.dmin) : 0;
  for (int i = 0; i < F::WEIGHTS; ++i) {
    const int q = F::TABLE ? F::VALUES[b.q[i]] : b.q[i] - F::ZERO, g = i / F::GROUP;
    if constexpr (F::WEIGHTS == UNIT) to[i] = F::HAS_LEAST ? d * q + least : d * q;
    else if constexpr (F::HAS_LEAST) to[i] = d * b.scale[g] * q - least * b.least[g];
    else to[i] = d * b.scale[g] * q;
  }
}

// Quantises 32 numbers to a block of Q4_0: the number of largest magnitude becomes -8 times the scale.
inline void quantise_q4_0(const float* from, uint8_t* to) {
  const Floats low = load(from), high = load(from + LANES);
  const float above = largest(most(low, high)), below = largest(sub(zeros(), least(low, high)));
  const float d = (above > below ? above : -below) / -8, inverse = d == 0 ? 0 : 1 / d;
  const uint16_t half = uint16_t(_cvtss_sh(d, 0));
  std::memcpy(to, &half, sizeof half);
  float q[UNIT];
  store(q, least(fma(low, spread(inverse), spread(8.5f)), spread(15.0f)));
  store(q + LANES, least(fma(high, spread(inverse), spread(8.5f)), spread(15.0f)));
  for (int i = 0; i < LANES; ++i) to[2 + i] = uint8_t(int(q[i]) | int(q[LANES + i]) << 4);
}

}  // namespace specinfer
