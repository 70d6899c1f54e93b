// Moving and turning entries of the cache.
#pragma once
#include <cstdint>
#include <vector>

#include "bindings.h"
#include "norms.h"

namespace specinfer {

template <class T>
void move_rows(const Shape& s, T* keys, T* values, int64_t blocks, int step, int count, const int32_t* source,
               const int32_t* target) {
  const int row = s.kv_heads * s.dim;
  std::vector<T> held(size_t(count) * row * 2);
  for (int layer = 0; layer < s.layers; ++layer) {
    const size_t base = size_t(layer) * blocks * BLOCK * row;
    // i: element of [keys, values][KV heads, D]
    const auto at = [&](int slot, int i) -> T& {
      const int head = i % row / s.dim, d = i % s.dim, lane = slot % BLOCK;
      const size_t block = base + (size_t(slot / BLOCK) * s.kv_heads + head) * s.dim * BLOCK;
      if (i < row) return keys[block + ((d / step) * BLOCK + lane) * step + d % step];
      return values[block + (size_t(lane / step) * s.dim + d) * step + lane % step];
    };
    for (int j = 0; j < count; ++j)
      for (int i = 0; i < 2 * row; ++i) held[size_t(j) * 2 * row + i] = at(source[j], i);
    for (int j = 0; j < count; ++j)
      for (int i = 0; i < 2 * row; ++i) at(target[j], i) = held[size_t(j) * 2 * row + i];
  }
}

// Turns the keys of some slots by an angle per pair of dimensions.
template <class Kind>
void rotate_keys(const Shape& s, void* cache, int64_t blocks, int count, const int32_t* slots, const float* cos,
                 const float* sin) {
  using T = typename Kind::T;
  std::vector<float> x(s.dim);
  for (int layer = 0; layer < s.layers; ++layer)
    for (int j = 0; j < count; ++j)
      for (int head = 0; head < s.kv_heads; ++head) {
        const int lane = slots[j] % BLOCK;
        T* block = static_cast<T*>(cache) +
                   ((size_t(layer) * blocks + slots[j] / BLOCK) * s.kv_heads + head) * s.dim * BLOCK;
        const auto at = [&](int i) -> T& { return block[((i / Kind::S) * BLOCK + lane) * Kind::S + i % Kind::S]; };
        for (int i = 0; i < s.dim; ++i) x[i] = Kind::to_float(at(i));
        rotate(x.data(), cos, sin, s.rotary);
        for (int i = 0; i < s.dim; ++i) at(i) = Kind::from_float(x[i]);
      }
}

}  // namespace specinfer
