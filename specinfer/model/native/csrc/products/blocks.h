// Products of GGUF blocks and activations in bytes; a row's result has the same bits for any other rows.
//
// A tile has BLOCK_VECTORS * 16 columns of a matrix over all of k, block by block: scales of all columns, then units of 32
// weights along k. A line of 64 bytes has 32 bits of each of 16 columns:
//
//   four bits   line i: low nibbles are weights 8i to 8i + 3 of the unit, high ones 8i + 4 to 8i + 7
//   two bits    line i: bits 2j, 2j + 1 of the four bytes are weights 16i + 4j to 16i + 4j + 3
//   one bit     bits j of the four bytes are weights 4j to 4j + 3
//   eight bits  line i: weights 4i to 4i + 3
//
// Numbers of three, five and six bits combine two of these. The sum of a group is exact. Sums of groups are added in float32
// in the order of k; in blocks of 256 first within the block:
//
//   sum += scale_a * (d * scale * (sum(q * a) - ZERO * sum(a)) - dmin * least * sum(a))
#pragma once
#include <array>
#include <bit>
#include <cstdint>
#include <cstring>

#include "products/activations.h"
#include "products/formats.h"

namespace specinfer {

// Columns of a tile.
inline constexpr int TILE = BLOCK_VECTORS * LANES;

// Shifts all bits by N places, up or down; the caller masks bits that leave their byte.
template <int N>
INLINED inline Words moved(Words x) {
  if constexpr (N > 0) return shorts_up(x, N);
  else if constexpr (N < 0) return shorts_down(x, -N);
  else return x;
}

// x times a power of two, or times zero.
template <int FACTOR>
INLINED inline Words times_power(Words x) {
  if constexpr (FACTOR == 0) return no_bits();
  else return words_up<std::countr_zero(unsigned(FACTOR))>(x);
}

// Adds one or two bits of all numbers of steps 2P and 2P + 1 at place TO of their bytes. `line`: the first of these bits.
template <int P, int BITS, int TO>
INLINED inline void add_pair(const char* line, Words& first, Words& second) {
  constexpr int STEPS = 8 / BITS, mask = ((1 << BITS) - 1) << TO, at = 2 * P % STEPS * BITS;
  const Words bits = load_words(line + 2 * P / STEPS * BLOCK_VECTORS * 64);
  first = either(first, masked(moved<TO - at>(bits), 0x01010101u * mask));
  second = either(second, masked(moved<TO - at - BITS>(bits), 0x01010101u * mask));
}

template <int P>
INLINED inline void nibble_pair(const char* at, Words& first, Words& second) {
  const Words both = load_words(at + P * BLOCK_VECTORS * 64);
  first = masked(both, 0x0F0F0F0F), second = masked(moved<-4>(both), 0x0F0F0F0F);
}

// Table of a format's values as they are multiplied: plus 128 if bytes are unsigned.
template <class F>
inline constexpr auto TABLE_OF = [] {
  std::array<int8_t, 16> values{};
  for (int i = 0; i < 16; ++i) values[i] = int8_t(DOTS_WHOLE_BYTES ? F::VALUES[i] + 128 : F::VALUES[i]);
  return values;
}();

// Returns steps 2P and 2P + 1 of a unit as bytes: four weights of 16 columns each.
template <class F, int P>
INLINED inline void weight_pair(const char* at, Words& first, Words& second) {
  constexpr int line = BLOCK_VECTORS * 64;
  if constexpr (F::BITS == 8) {
    first = load_words(at + 2 * P * line), second = load_words(at + (2 * P + 1) * line);
  } else if constexpr (F::BITS >= 4) {
    nibble_pair<P>(at, first, second);
    if constexpr (F::BITS == 5) add_pair<P, 1, 4>(at + 4 * line, first, second);
    if constexpr (F::BITS == 6) add_pair<P, 2, 4>(at + 4 * line, first, second);
    if constexpr (F::TABLE) first = look_up(TABLE_OF<F>.data(), first), second = look_up(TABLE_OF<F>.data(), second);
  } else {
    first = second = no_bits();
    add_pair<P, 2, 0>(at, first, second);
    if constexpr (F::BITS == 3) add_pair<P, 1, 2>(at + 2 * line, first, second);
  }
}

// Writes bits FROM to FROM + BITS of a unit's numbers into lines; `steps` has four numbers per word.
template <int BITS, int FROM>
void put_bits(const uint32_t* steps, uint32_t* lane) {
  constexpr int STEPS = 8 / BITS;
  for (int line = 0; line < BITS; ++line) {
    uint32_t word = 0;
    for (int i = 0; i < STEPS; ++i) word |= (steps[line * STEPS + i] >> FROM & 0x01010101u * ((1 << BITS) - 1)) << i * BITS;
    lane[line * TILE] = word;
  }
}

// Writes the numbers of a unit into its column's lane.
template <int BITS>
void put_numbers(const uint8_t* q, uint32_t* lane) {
  uint32_t steps[UNIT / 4];
  std::memcpy(steps, q, sizeof steps);
  if constexpr (BITS == 8) put_bits<8, 0>(steps, lane);
  if constexpr (BITS >= 4 && BITS < 8) put_bits<4, 0>(steps, lane);
  if constexpr (BITS == 5) put_bits<1, 4>(steps, lane + 4 * TILE);
  if constexpr (BITS == 6) put_bits<2, 4>(steps, lane + 4 * TILE);
  if constexpr (BITS < 4) put_bits<2, 0>(steps, lane);
  if constexpr (BITS == 3) put_bits<1, 2>(steps, lane + 2 * TILE);
}

// Tiles of a format, and products with them.
template <class F>
struct Blocks {
  static inline constexpr int UNITS = F::WEIGHTS / UNIT, GROUPS = UNIT / F::GROUP;
  static inline constexpr bool SCALED = F::WEIGHTS > UNIT;
  static inline constexpr int HALVES_BYTES = TILE * 2 * (1 + F::HAS_LEAST);
  static inline constexpr int SCALES_BYTES = SCALED ? UNITS * GROUPS * TILE : 0;
  static inline constexpr int HEAD_BYTES = HALVES_BYTES + SCALES_BYTES * (1 + (F::HAS_LEAST && !F::PAIRED));
  static inline constexpr int UNIT_BYTES = F::BITS * TILE * 4, BLOCK_BYTES = HEAD_BYTES + UNITS * UNIT_BYTES;
  static inline constexpr Prepared INPUT = SCALED ? Q8_K_ROWS : Q8_0_ROWS;
  // 8-bit numbers and table values are signed in registers if the processor cannot multiply full unsigned bytes.
  static inline constexpr bool SIGNED = (F::BITS == 8 || F::TABLE) && !DOTS_WHOLE_BYTES;
  static inline constexpr int ZERO = SIGNED ? 0 : F::ZERO;
  using Dot = ByteDot<SIGNED ? -1 : F::TABLE ? 255 : (1 << F::BITS) - 1>;

  static size_t tile_bytes(int k) { return size_t(k) / F::WEIGHTS * BLOCK_BYTES; }

  // Writes a block of the file into a tile's block, as column `c`.
  static void put(char* to, int c, const uint8_t* from) {
    Block b;
    F::read(from, b);
    std::memcpy(to + 2 * c, &b.d, 2);
    if (F::HAS_LEAST) std::memcpy(to + 2 * (TILE + c), &b.dmin, 2);
    for (int g = 0; SCALED && g < UNITS * GROUPS; ++g) {
      char* at = to + HALVES_BYTES + g * TILE + c;
      *at = F::PAIRED ? char(b.scale[g] | b.least[g] << 4) : char(b.scale[g]);
      if (F::HAS_LEAST && !F::PAIRED) at[SCALES_BYTES] = char(b.least[g]);
    }
    uint32_t* lane = reinterpret_cast<uint32_t*>(to + HEAD_BYTES) + c;
    if (SIGNED && F::BITS == 8)
      for (uint8_t& q : b.q) q ^= 0x80;
    for (int u = 0; u < UNITS; ++u) put_numbers<F::BITS>(b.q + u * UNIT, lane + u * UNIT_BYTES / 4);
  }

  // Scales of 16 columns for a group's sum, and negated factors of the group's sum of activations.
  struct Scales {
    Floats d, dmin;
    const char* at;  // integer scales of the first group

    Scales(const char* head, int v) : at(head + HALVES_BYTES + v * LANES) {
      d = load_halves(head + v * 32);
      if constexpr (F::HAS_LEAST) dmin = load_halves(head + TILE * 2 + v * 32);
    }
    Floats scale(int g) const {
      if constexpr (!SCALED) return d;
      else return mul(to_floats(F::PAIRED ? masked(signed_bytes(at + g * TILE), 15) : signed_bytes(at + g * TILE)), d);
    }
    Floats least(int g) const {
      if constexpr (!SCALED) return sub(zeros(), dmin);
      else if constexpr (F::PAIRED) return mul(to_floats(masked(moved<-4>(unsigned_bytes(at + g * TILE)), 15)), dmin);
      else return mul(to_floats(unsigned_bytes(at + SCALES_BYTES + g * TILE)), dmin);
    }
  };
};

// MR rows, `stride` units apart, times a tile's blocks: out[r][c] = sum over k in order. Prefetches `lines` cache lines from
// `fetch` per unit. A function of its own, so that it can use all registers.
template <class F, int MR>
__attribute__((noinline)) void sweep_blocks(const ByteUnit* a, size_t stride, const char* w, int blocks, float* out, const char* fetch,
                                            int lines) {
  using B = Blocks<F>;
  constexpr int V = BLOCK_VECTORS;
  alignas(64) float part[MR * TILE] = {};
  for (int i = 0; i < MR * TILE; i += LANES) store(out + i, zeros());
  for (; blocks > 0; --blocks) {
    const char* head = w;
    w += B::HEAD_BYTES;
#pragma GCC unroll 1
    for (int u = 0; u < B::UNITS; ++u, w += B::UNIT_BYTES, ++a) {
      for (int i = 0; i < lines; ++i) _mm_prefetch(fetch + i * 64, _MM_HINT_T0);
      fetch += lines * 64;
      times<B::GROUPS>([&](auto g) INLINED {
        typename B::Dot::Sum sums[MR][V];
        times<MR>([&](auto r) INLINED {
          const Words zero = times_power<B::ZERO>(spread(a[r * stride].minus[B::GROUPS == 1 ? 2 : int(g)]));
          times<V>([&](auto v) INLINED { sums[r][v] = B::Dot::begin(zero); });
        });
        times<4 / B::GROUPS>([&](auto p) INLINED {
          constexpr int pair = g * 2 + p;
          Words first[V], second[V];
          times<V>([&](auto v) INLINED { weight_pair<F, pair>(w + v * 64, first[v], second[v]); });
          times<MR>([&](auto r) INLINED {
            const uint32_t* four = a[r * stride].four + 2 * pair;
            times<V>([&](auto v) INLINED { sums[r][v] = B::Dot::add(sums[r][v], first[v], second[v], four[0], four[1]); });
          });
        });
        times<V>([&](auto v) INLINED {
          const typename B::Scales scales(head, v);
          const Floats scale = scales.scale(u * B::GROUPS + g);
          Floats least;
          if constexpr (F::HAS_LEAST) least = scales.least(u * B::GROUPS + g);
          times<MR>([&](auto r) INLINED {
            const ByteUnit& unit = a[r * stride];
            constexpr int which = B::GROUPS == 1 ? 2 : int(g);
            Words sum = B::Dot::end(sums[r][v]);
            if constexpr (B::ZERO && !B::Dot::BEGINS) sum = add(sum, times_power<B::ZERO>(spread(unit.minus[which])));
            float* p = part + (r * V + v) * LANES;
            Floats x = mul(to_floats(sum), scale);
            if constexpr (B::SCALED) {
              if (u + g > 0) x = fma(to_floats(sum), scale, load(p));
            }
            if constexpr (F::HAS_LEAST) x = fma(least, to_floats(spread(unit.minus[which])), x);
            if constexpr (B::SCALED) {
              if (u < B::UNITS - 1 || g < B::GROUPS - 1) {
                store(p, x);
                return;
              }
            }
            float* to = out + (r * V + v) * LANES;
            store(to, fma(x, spread(unit.scale), load(to)));
          });
        });
      });
    }
  }
}

}  // namespace specinfer
