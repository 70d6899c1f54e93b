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

// The same blocks with activations in bytes: half the multiplications; activations are rounded to 1/127 of the largest of their
// group, as llama.cpp does it. Weights are unsigned, four to an instruction. Of a group of activations: 32 bytes, their scale,
// their sum times that.
inline constexpr int BYTE_GROUP_WORDS = GROUP / 4 + 2;

template <class Blocks>
struct InBytes : Blocks {
  static inline constexpr int PARTS = Blocks::S / 4;
  struct Unit {
    uint32_t four[PARTS];
  };
  static constexpr int units(int steps) { return steps / Blocks::SPAN * (BYTE_GROUP_WORDS / PARTS); }
  static Words madd(Words sums, Words w, const Unit& a, int part) { return dot_unsigned(sums, w, a.four[part]); }

 protected:
  static Floats factor(const Unit* group, int which) {
    float x;
    std::memcpy(&x, reinterpret_cast<const uint32_t*>(group) + GROUP / 4 + which, sizeof x);
    return spread(x);
  }
  // sums * scale + sum of the activations * least, beside what is there
  static void put(float* p, Words sums, const Unit* group, Floats scale, Floats least, bool go_on) {
    const Floats rest = fma(least, factor(group, 1), go_on ? load(p) : zeros());
    store(p, fma(to_floats(whole(sums)), mul(scale, factor(group, 0)), rest));
  }
};

// Four bits, so that a mask and a shift make four bytes of a lane:
//
//   bits    31..28 27..24 23..20 19..16 15..12 11..8  7..4   3..0
//   weight   7      3      6      2      5      1      4      0
struct NibblesA8 : InBytes<Nibbles> {
  static Words part(Words w, int which) { return masked(which ? shorts_down(w, 4) : w, 0x0F0F0F0F); }
  static void end(float* p, Words sums, const Unit* group, const Head& head, bool go_on) {
    put(p, sums, group, head.scale, head.least, go_on);
  }
  static constexpr int bit(int i) { return i % 4 * 8 + i / 4 * 4; }
};

// Eight bits: a weight and 128 is unsigned, so a block's minimum is -128 of its scale. Where DOTS_WHOLE_BYTES.
struct OctetsA8 : InBytes<Octets> {
  static Words part(Words w, int) { return w; }
  static void end(float* p, Words sums, const Unit* group, Floats scale, bool go_on) {
    put(p, sums, group, scale, mul(scale, spread(-128.0f)), go_on);
  }
  static constexpr int bit(int i) { return 8 * i; }
  static uint32_t weight(const uint8_t* block, int i) { return block[2 + i] ^ 0x80; }
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

// The same in bytes.
struct GroupByteRows {
  std::vector<uint32_t> words;

  void fill(const Bf16::A* activations, int rows, int k) {
    words.resize(size_t(rows) * k / GROUP * BYTE_GROUP_WORDS);
    uint32_t* out = words.data();
    for (const Bf16::A* end = activations + size_t(rows) * k; activations < end; activations += GROUP, out += BYTE_GROUP_WORDS) {
      const Floats low = Bf16::load(activations), high = Bf16::load(activations + LANES);
      const WholeScale whole(most(magnitudes(low), magnitudes(high)), 127);
      const Words first = to_words(mul(low, whole.inverse)), second = to_words(mul(high, whole.inverse));
      store_low_bytes(out, first), store_low_bytes(out + LANES / 4, second);
      const float scale = whole.scale, total = scale * float(sum(add(first, second)));
      std::memcpy(out + GROUP / 4, &scale, sizeof scale), std::memcpy(out + GROUP / 4 + 1, &total, sizeof total);
    }
  }
};

}  // namespace specinfer
