// Products with the blocks of GGUF: groups of 32 weights along k, of 4 or 8 bits, with a scale (and, for Q4_1, a minimum).
//
// Why: one token reads all weights, and blocks are a third or a half of the bytes that bfloat16 takes. So they stay what they
// are in memory and become whole numbers of 16 bits in registers, three instructions for 32 of them; activations become such
// numbers, too, a scale per group. A group's sum is exact:
//
//   weight = scale * q (+ minimum)      product = scale * scale_a * sum(q * a) (+ minimum * scale_a * sum(a))
//
//   |sum(q * a)| <= 32 * 128 * 32767 < 2^31
//
// Weights count as the file has them: nothing rounds them to bfloat16. What is rounded: activations, to 1/32767 of the
// largest of their group.
//
// A lane of 32 bits holds S weights of a column. Its halves are pairs, so that masks and shifts make 16 bits of them:
//
//   Q4_1  bits  31..28 27..24 23..20 19..16 15..12 11..8  7..4   3..0      Q8_0  bits  31..24 23..16 15..8  7..0
//         weight   7      5      3      1      6      4      2      0            weight   3      1      2      0
#pragma once
#include <cstdint>
#include <cstring>
#include <vector>

#include "products/whole_numbers.h"

namespace specinfer {

inline constexpr int GROUP = 32;  // weights that share a scale

// Activations of a group: 16 pairs, their scale, their sum times that, and what makes it a whole number of Units.
inline constexpr int GROUP_WORDS = GROUP / 2 + 4;

// What both kinds have in common. A span is a group; its first line holds 16 columns' scales.
template <int BITS>
struct GroupNumbers {
  static inline constexpr int S = 32 / BITS, PARTS = S / 2, SPAN = GROUP / S, HEAD = 1;
  static inline constexpr bool UNROLLS = false;
  using Sum = Words;
  struct Unit {
    uint32_t pair[PARTS];
  };
  static constexpr int units(int steps) { return steps / SPAN * (GROUP_WORDS / PARTS); }
  static Sum begin(const float*, bool) { return no_bits(); }
  static Sum madd(Sum sums, Words w, const Unit& a, int part) { return dot_shorts(sums, w, a.pair[part]); }
  // Where weight i of a step lies in its lane.
  static constexpr int bit(int i) { return i / 2 * BITS + i % 2 * 16; }

 protected:
  static Floats factor(const Unit* group, int which) {
    float x;
    std::memcpy(&x, reinterpret_cast<const uint32_t*>(group) + GROUP / 2 + which, sizeof x);
    return spread(x);
  }
};

// Q4_1. A block: scale and minimum as float16, 16 bytes: low nibbles are weights 0 to 15, high ones 16 to 31.
struct Nibbles : GroupNumbers<4> {
  static inline constexpr int BLOCK_BYTES = 20;
  static Words part(Words w, int which) {
    const Words low = shorts_down(w, 4 * which);
    return which < PARTS - 1 ? nibbles(low) : low;
  }
  struct Head {
    Floats scale, least;
  };
  static Head head(const char* p) { return {load_halves(p), load_halves(p + 32)}; }
  static void end(float* p, Sum sums, const Unit* group, const Head& head, bool go_on) {
    const Floats least = fma(head.least, factor(group, 1), go_on ? load(p) : zeros());
    store(p, fma(to_floats(sums), mul(head.scale, factor(group, 0)), least));
  }
  static uint32_t weight(const uint8_t* block, int i) { return i < 16 ? block[4 + i] & 15 : block[4 + i - 16] >> 4; }
  static void put_head(char* head, int lane, const uint8_t* block) {
    std::memcpy(head + 2 * lane, block, 2), std::memcpy(head + 32 + 2 * lane, block + 2, 2);
  }
};

// Q8_0. A block: scale as float16, 32 signed bytes.
struct Octets : GroupNumbers<8> {
  static inline constexpr int BLOCK_BYTES = 34;
  static Words part(Words w, int which) { return signed_shorts_down(which ? w : shorts_up(w, 8), 8); }
  static Floats head(const char* p) { return load(reinterpret_cast<const float*>(p)); }
  static void end(float* p, Sum sums, const Unit* group, Floats head, bool go_on) {
    const Floats scale = mul(head, factor(group, 0));
    store(p, fma(to_floats(sums), scale, go_on ? load(p) : zeros()));
  }
  static uint32_t weight(const uint8_t* block, int i) { return block[2 + i]; }
  static void put_head(char* head, int lane, const uint8_t* block) {
    uint16_t half;
    std::memcpy(&half, block, 2);
    const float scale = _cvtsh_ss(half);
    std::memcpy(head + 4 * lane, &scale, 4);
  }
};

// Rows of activations: each group has a scale of its own, so a row's result depends on nothing else.
struct GroupRows {
  std::vector<uint32_t> words;

  void fill(const Bf16::A* activations, int rows, int k) {
    words.resize(size_t(rows) * k / GROUP * GROUP_WORDS);
    uint32_t* out = words.data();
    for (const Bf16::A* end = activations + size_t(rows) * k; activations < end; activations += GROUP, out += GROUP_WORDS) {
      const float scale = to_whole_numbers(activations, GROUP, 32767, out);
      const float total = scale * sum(to_floats(dot_shorts(no_bits(), load_words(out), ONES)));
      std::memcpy(out + GROUP / 2, &scale, sizeof scale), std::memcpy(out + GROUP / 2 + 1, &total, sizeof total);
    }
  }

 private:
  static inline constexpr uint32_t ONES = 0x00010001;
};

}  // namespace specinfer
