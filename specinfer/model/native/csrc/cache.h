// Moves and rotates entries of the cache.
#pragma once
#include <cstdint>
#include <cstring>
#include <vector>

#include "attention/cache_kinds.h"
#include "norms.h"

namespace specinfer {

// Copies an entry's numbers and scale between a block of keys or values and a row of bytes.
template <class C, bool PUT>
void copy_entry(char* block, bool keys, int dim, int lane, char* row) {
  using T = typename C::T;
  const auto copy = [&row](void* entry, size_t n) {
    if (PUT) std::memcpy(entry, row, n);
    else std::memcpy(row, entry, n);
    row += n;
  };
  copy(block + lane * C::SCALE_BYTES, C::SCALE_BYTES);
  if (keys)
    for (int i = 0; i < dim / C::S; ++i) copy(key_words<C>(block, lane) + i * BLOCK, 4);
  else
    for (int i = 0; i < dim; ++i) copy(value_elements<C>(block, dim, lane) + i * C::S, sizeof(T));
}

template <class C>
void move_entries(const Shape& s, void* keys, void* values, int64_t blocks, int count, const int32_t* source,
                  const int32_t* target) {
  const size_t entry = block_bytes<C>(s.dim) / BLOCK, row = 2 * s.kv_heads * entry;
  std::vector<char> all(count * row);
  for (int layer = 0; layer < s.kv_layers; ++layer) {
    const auto each = [&](const int32_t* slots, auto copy) {
      for (int j = 0; j < count; ++j)
        for (int i = 0; i < 2 * s.kv_heads; ++i) {
          char* block = cache_block<C>(s, i % 2 ? values : keys, blocks, layer, slots[j] / BLOCK, i / 2);
          copy(block, i % 2 == 0, s.dim, slots[j] % BLOCK, &all[j * row + i * entry]);
        }
    };
    each(source, copy_entry<C, false>);
    each(target, copy_entry<C, true>);
  }
}

// Rotates the keys of some slots by an angle per pair of dimensions.
template <class C>
void rotate_keys(const Shape& s, void* keys, int64_t blocks, int count, const int32_t* slots, const float* cos,
                 const float* sin) {
  std::vector<float> x(s.dim);
  for (int layer = 0; layer < s.kv_layers; ++layer)
    for (int j = 0; j < count; ++j)
      for (int head = 0; head < s.kv_heads; ++head) {
        char* block = cache_block<C>(s, keys, blocks, layer, slots[j] / BLOCK, head);
        C::take_key(block, slots[j] % BLOCK, s.dim, x.data());
        rotate(x.data(), cos, sin, s.rotary);
        C::put_key(block, slots[j] % BLOCK, s.dim, x.data());
      }
}

}  // namespace specinfer
