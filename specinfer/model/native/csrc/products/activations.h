// Activations of a product in the forms that matrices read: prepared once per input, shared by all threads.
//
// For quantised blocks they are bytes with a scale per 32 numbers (Q8_0) or 256 (Q8_K), rounded from float32. A row's numbers
// depend on the row alone.
#pragma once
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "products/block_float.h"
#include "products/formats.h"
#include "simd/threads.h"

namespace specinfer {

// 32 activations in bytes. minus[0], minus[1]: negated sums of their halves; minus[2]: of all.
struct ByteUnit {
  uint32_t four[UNIT / 4];
  int32_t minus[3];
  float scale;
};

// Forms of activations, as bits of a mask. PLAIN: float32, unchanged.
enum Prepared { PLAIN = 0, BF16_ROWS = 1, BLOCK_FLOAT_ROWS = 2, Q8_0_ROWS = 4, Q8_K_ROWS = 8 };

// Rounds n numbers (a multiple of 32) over one scale to bytes, in units.
inline void quantise_bytes(const float* x, int n, ByteUnit* out) {
  Words top = no_bits();
  for (int i = 0; i < n; i += LANES) top = most(top, magnitudes(load(x + i)));
  const WholeScale whole(top, 127);
  for (int i = 0; i < n; i += UNIT, ++out) {
    const Words first = to_words(mul(load(x + i), whole.inverse)), second = to_words(mul(load(x + i + LANES), whole.inverse));
    store_low_bytes(out->four, first), store_low_bytes(out->four + UNIT / 8, second);
    out->minus[0] = -sum(first), out->minus[1] = -sum(second), out->minus[2] = out->minus[0] + out->minus[1];
    out->scale = whole.scale;
  }
}

// The input of a product: `rows` of `k` float32 numbers, and their prepared forms.
class Inputs {
 public:
  static inline constexpr int CHUNK = 256;  // numbers prepared together; a row's last chunk may be shorter

  // Reserves memory for these forms. Only one thread may call it.
  void reserve(int ways, size_t rows, size_t k) {
    const auto grow = [ways](int way, auto& buffer, size_t n) {
      if (ways & way && buffer.size() < n) buffer.resize(n);
    };
    grow(BF16_ROWS, halves_, rows * k);
    grow(BLOCK_FLOAT_ROWS, block_float_, rows * BlockFloat::units(int(k + 1) / BlockFloat::S));
    grow(Q8_0_ROWS, bytes_[0], rows * ((k + UNIT - 1) / UNIT));
    grow(Q8_K_ROWS, bytes_[1], rows * ((k + UNIT - 1) / UNIT));
  }

  // Prepares numbers `first` (a multiple of CHUNK) to `end` of a row.
  void prepare(int ways, const float* x, int k, int row, int first, int end) {
    const float* from = x + size_t(row) * k;
    if (ways & BF16_ROWS) fill_halves(from, row, k, first, end);
    if (ways & BLOCK_FLOAT_ROWS) fill_block_float(from, row, k, first, end);
    if (ways & Q8_0_ROWS)
      for (int i = first; i < end; i += UNIT) quantise_bytes(from + i, UNIT, unit(0, row, k, i));
    if (ways & Q8_K_ROWS)
      for (int i = first; i < end; i += CHUNK) quantise_bytes(from + i, std::min(CHUNK, end - i), unit(1, row, k, i));
  }

  // Prepares a thread's share of all rows, chunk by chunk.
  void prepare_share(int ways, const float* x, int rows, int k, int thread, int threads) {
    const int chunks = (k + CHUNK - 1) / CHUNK;
    const Range r = share(rows * chunks, thread, threads);
    for (int i = r.begin; i < r.end; ++i) {
      const int begin = i % chunks * CHUNK;
      prepare(ways, x, k, i / chunks, begin, std::min(k, begin + CHUNK));
    }
  }

  const ByteUnit* bytes(Prepared way) const { return bytes_[way == Q8_K_ROWS].data(); }
  const uint16_t* halves() const { return halves_.data(); }
  const BlockFloat::Unit* block_float() const { return block_float_.data(); }

 private:
  ByteUnit* unit(int which, int row, int k, int i) { return bytes_[which].data() + (size_t(row) * k + i) / UNIT; }

  void fill_halves(const float* from, int row, int k, int first, int end) {
    uint16_t* to = halves_.data() + size_t(row) * k;
    int i = first;
    for (; i + LANES <= end; i += LANES) store_bf16(to + i, load(from + i));
    for (; i < end; ++i) to[i] = to_bf16(from[i]);
  }

  void fill_block_float(const float* from, int row, int k, int first, int end) {
    constexpr int block = BlockFloat::SPAN * BlockFloat::S;
    BlockFloat::Unit* out = block_float_.data() + size_t(row) * BlockFloat::units(k / BlockFloat::S);
    out += size_t(first) / block * (BlockFloat::SPAN + 1);
    for (int i = first; i < end; i += block, out += BlockFloat::SPAN + 1) {
      const float scale = to_whole_numbers(from + i, std::min(block, end - i), LARGEST_ACTIVATION, out);
      std::memcpy(out + BlockFloat::SPAN, &scale, sizeof scale);
    }
  }

  std::vector<ByteUnit> bytes_[2];
  std::vector<uint16_t> halves_;
  std::vector<BlockFloat::Unit> block_float_;
};

}  // namespace specinfer
