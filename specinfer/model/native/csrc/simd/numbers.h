// Kinds of numbers: a step of a dot product in bfloat16, float16 and float32.
#pragma once
#include <algorithm>
#include <cstdint>
#include <cstring>

#include "simd/simd.h"
#include "simd/unroll.h"

namespace specinfer {

inline constexpr int BLOCK = 16;  // tokens per cache block, and lanes of a vector

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

// A kind has
//   T, S     type of weights and cache; number of elements in a lane of 32 bits
//   A, Unit  type of activations; S activations are a Unit, one step of a dot product
//   place    place of a column's element s in a line of 16 columns
//   PARTS    number of multiply-adds per step; `part` i: what the i-th takes from a vector of weights
//   SPAN     number of steps after which a sum is stored: `begin` and `end` it, with `go_on` if a sum is there already
//   HEAD     1 if a line of 64 bytes, 16 columns' scales, precedes the lines of a span: `end` gets it as `head`
//   units    start of a step's span in a row of Units
//   UNROLLS  whether the loop over steps runs UNROLLED steps at once; false if that would put sums into memory

// Kinds whose spans have no head.
struct NoHead {};
struct Headless {
  static inline constexpr int HEAD = 0;
  static NoHead head(const char*) { return {}; }
};

// Kinds with one span: sums run from one end of a row to the other.
template <int STEP>
struct OneSpan : Headless {
  static inline constexpr int SPAN = 1 << 30, S = STEP;
  static constexpr int units(int steps) { return steps; }
  static constexpr int place(int column, int s) { return column * S + s; }
};

#ifdef __AVX512BF16__
inline constexpr bool MULTIPLIES_BF16 = true;
#else
inline constexpr bool MULTIPLIES_BF16 = false;
#endif

// Common parts of both ways to multiply bfloat16.
struct Bf16Numbers : OneSpan<2> {
  using T = uint16_t;
  using Sum = Floats;
  static inline constexpr bool UNROLLS = false;
  static Sum begin(const float* p, bool go_on) { return go_on ? specinfer::load(p) : zeros(); }
  static void end(float* p, Sum sum, const void*, NoHead, bool) { specinfer::store(p, sum); }
  // Returns element `parity` of each pair in `from`, at place `to` of a pair of zeros.
  static Words pick(Words from, int parity, int to) {
    const Words x = parity ? down_16(from) : masked(from, 0xFFFF);
    return to ? up_16(x) : x;
  }
  static void store(T* p, Floats x) { store_bf16(p, x); }
  static T from_float(float x) { return to_bf16(x); }
  static float to_float(T x) { return from_bf16(x); }
};

#ifdef __AVX512BF16__
// Both products of a step in one instruction; activations are bfloat16, too.
struct Bf16 : Bf16Numbers {
  using A = uint16_t;
  using Unit = uint32_t;
  static inline constexpr int PARTS = 1;
  static Words part(Words w, int) { return w; }
  static Floats madd(Floats acc, Words w, const Unit& a, int) {
    return _mm512_dpbf16_ps(acc, (__m512bh)_mm512_set1_epi32(int(a)), (__m512bh)w);
  }
  static Floats load(const A* p) { return load_bf16(p); }
  static void put(A* p, Floats x) { store_bf16(p, x); }
  static A activation(float x) { return to_bf16(x); }
};
#else
// Weights and cache in bfloat16, widened in registers; activations in float32.
struct Bf16 : Bf16Numbers {
  using A = float;
  struct Unit {
    A pair[2];
  };
  static inline constexpr int PARTS = 2;
  static Floats part(Words w, int which) { return as_floats(which ? masked(w, 0xFFFF0000) : up_16(w)); }
  static Floats madd(Floats acc, Floats w, const Unit& a, int which) { return fma(w, spread(a.pair[which]), acc); }
  static Floats load(const A* p) { return specinfer::load(p); }
  static void put(A* p, Floats x) { specinfer::store(p, x); }
  static A activation(float x) { return x; }
};
#endif

struct Float32 : OneSpan<1> {
  using T = float;
  using A = float;
  using Unit = A;
  using Sum = Floats;
  static inline constexpr int PARTS = 1;
  static inline constexpr bool UNROLLS = true;
  static Sum begin(const float* p, bool go_on) { return go_on ? specinfer::load(p) : zeros(); }
  static void end(float* p, Sum sum, const void*, NoHead, bool) { specinfer::store(p, sum); }
  static Floats part(Words w, int) { return as_floats(w); }
  static Floats madd(Floats acc, Floats w, const Unit& a, int) { return fma(spread(a), w, acc); }
  static Words pick(Words from, int, int) { return from; }
  static void store(T* p, Floats x) { specinfer::store(p, x); }
  static void put(A* p, Floats x) { specinfer::store(p, x); }
  static T from_float(float x) { return x; }
  static A activation(float x) { return x; }
  static float to_float(T x) { return x; }
};

// Weights in float16, widened in registers; activations in float32. For matrices only.
struct Float16 : OneSpan<2> {
  using T = uint16_t;
  using Sum = Floats;
  struct Unit {
    float pair[2];
  };
  static inline constexpr int PARTS = 2;
  static inline constexpr bool UNROLLS = false;
  static constexpr int place(int column, int s) { return s * LANES + column; }
  static Sum begin(const float* p, bool go_on) { return go_on ? specinfer::load(p) : zeros(); }
  static void end(float* p, Sum sum, const void*, NoHead, bool) { specinfer::store(p, sum); }
  static Floats part(Words w, int which) { return which ? high_halves(w) : low_halves(w); }
  static Floats madd(Floats acc, Floats w, const Unit& a, int which) { return fma(w, spread(a.pair[which]), acc); }
};

// Number of lines of 64 bytes that 16 columns take for some steps; whole spans if these have heads.
template <class Kind>
constexpr size_t lines(int steps) {
  return steps + steps / Kind::SPAN * Kind::HEAD;
}

// One step of MR rows and V vectors of weights: acc[r][v] += vector at[v] * unit(r). With more than SUMS sums no register is
// left for weights, which are read again for every part.
template <class Kind, int MR, int V, class UnitOf>
INLINED inline void multiply_step(typename Kind::Sum (&acc)[MR][V], const char* (&at)[V], UnitOf unit) {
  times<Kind::PARTS>([&](auto part) INLINED {
    decltype(Kind::part(no_bits(), part)) w[V];
    times<V>([&](auto v) INLINED {
      if constexpr (MR * V > SUMS) asm("" : "+r"(at[v]));  // otherwise the compiler would keep them in registers
      w[v] = Kind::part(load_words(at[v]), part);
    });
    times<MR>([&](auto r) INLINED {
      times<V>([&](auto v) INLINED { acc[r][v] = Kind::madd(acc[r][v], w[v], unit(r), part); });
    });
  });
}

// y += v, unless v is null.
inline void add_to(float* y, const float* v, int n) {
  for (int i = 0; v && i < n; ++i) y[i] += v[i];
}

// Writes n numbers; `lanes(i)` returns those from i on.
template <class Lanes>
inline void write_lanes(int n, float* y, Lanes lanes) {
  int i = 0;
  for (; i + LANES <= n; i += LANES) store(y + i, lanes(i));
  if (i == n) return;
  float rest[LANES];
  store(rest, lanes(i));
  std::copy(rest, rest + n - i, y + i);
}

inline constexpr float LOG2_E = 1.44269504f;

// 2 to the power of 16 floats: 2^n * p(f), with n the nearest integer and p of degree 6; relative error below 2e-7.
inline Floats vexp2(Floats x) {
  x = exponents(x);
  const Floats n = nearest(x), f = sub(x, n);
  Floats p = spread(1.5403530e-4f);  // ln(2)^k / k! from k = 6 down to 0
  for (float c : {1.3333558e-3f, 9.6181291e-3f, 5.5504109e-2f, 0.24022651f, 0.69314718f, 1.0f}) p = fma(p, f, spread(c));
  return scale_by_power(p, n);
}

inline Floats vexp(Floats x) { return vexp2(mul(x, spread(LOG2_E))); }

inline Floats relu(Floats x) { return most(zeros(), x); }
inline Floats silu(Floats x) { return div(x, add(spread(1.0f), vexp(sub(zeros(), x)))); }

// x / (1 + e^-2u), u = sqrt(2 / pi) (x + 0.044715 x^3): gelu with tanh instead of the error function.
inline Floats gelu_tanh(Floats x) {
  const Floats inner = mul(x, fma(mul(x, x), spread(0.044715f * -1.5957691216f), spread(-1.5957691216f)));
  return div(x, add(spread(1.0f), vexp(inner)));
}

// c tanh(x / c), given 1 / c
inline Floats soft_cap(Floats x, float c, float over) {
  const Floats half = div(spread(2 * c), add(spread(1.0f), vexp(mul(x, spread(-2 * over)))));
  return sub(half, spread(c));
}

// x times the normal distribution function; the tail beyond |x| by Abramowitz and Stegun 7.1.26, error below 1e-7.
inline Floats gelu(Floats x) {
  const Floats a = mul(magnitude(x), spread(0.70710678f)), one = spread(1.0f);
  const Floats t = div(one, fma(a, spread(0.3275911f), one));
  Floats p = spread(1.061405429f);
  for (float c : {-1.453152027f, 1.421413741f, -0.284496736f, 0.254829592f}) p = fma(p, t, spread(c));
  const Floats beyond = mul(mul(mul(p, t), spread(0.5f)), vexp(sub(zeros(), mul(a, a))));
  return sub(relu(x), mul(magnitude(x), beyond));
}

}  // namespace specinfer
