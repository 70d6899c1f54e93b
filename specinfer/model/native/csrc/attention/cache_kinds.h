// Storage of keys and values in the cache: as numbers, or as bytes with one scale per token and head.
//
// A kind of cache has
//   Keys, Values  kinds of numbers (numbers.h) for products query * keys and weights * values
//   SCALE_BYTES   bytes of scales per token and head; the 16 scales of a block precede its lines
//   query_words, put_query      length in words of a query as products read it, with the inputs of `begin` and `score`
//   begin, score                first and last step of the product of a query and a block of keys
//   put_key, take_key, put_value  convert an entry of a block from and to floats
//   put_weights, nothing, mixed   weights of values as products read them; a zero sum of products; sums as floats
//   place                       place of each of S values within a lane
#pragma once
#include <algorithm>
#include <cstdint>
#include <cstring>

#include "attention/hadamard.h"
#include "bindings.h"
#include "products/whole_numbers.h"

namespace specinfer {

// Keys of a block: [dim / S][16][S]. Values of a block: [16 / S][dim][S]. S elements are 32 bits.
template <class C>
size_t block_bytes(int dim) {
  return BLOCK * (size_t(dim) * sizeof(typename C::T) + C::SCALE_BYTES);
}

// Returns one block of keys or values, of one layer and head.
template <class C>
char* cache_block(const Shape& s, void* cache, int64_t blocks, int layer, int block, int head) {
  return static_cast<char*>(cache) + ((size_t(layer) * blocks + block) * s.kv_heads + head) * block_bytes<C>(s.dim);
}

template <class C>
uint32_t* key_words(char* block, int lane) {
  return reinterpret_cast<uint32_t*>(block + BLOCK * C::SCALE_BYTES) + lane;
}

template <class C>
typename C::T* value_elements(char* block, int dim, int lane) {
  auto* all = reinterpret_cast<typename C::T*>(block + BLOCK * C::SCALE_BYTES);
  return all + size_t(lane / C::S) * dim * C::S + C::place(lane % C::S);
}

// Keys and values as numbers of kind K.
template <class K>
struct NumberCache {
  using Keys = K;
  using Values = K;
  using T = typename K::T;
  static inline constexpr int S = K::S, SCALE_BYTES = 0;

  static constexpr int place(int s) { return s; }
  static int query_words(int dim) { return dim * int(sizeof(typename K::A)) / 4; }
  static void put_query(const float* x, int dim, uint32_t* out) {
    for (int i = 0; i < dim; i += LANES) K::put(reinterpret_cast<typename K::A*>(out) + i, load(x + i));
  }
  static Floats begin(const uint32_t*, int) { return zeros(); }
  static Floats score(Floats sum, const char*, const uint32_t*, int) { return sum; }
  static void put_key(char* block, int lane, int dim, const float* x) {
    uint32_t words[LANES / S], *to = key_words<NumberCache>(block, lane);
    for (int i = 0; i < dim; i += LANES) {
      K::store(reinterpret_cast<T*>(words), load(x + i));
      for (int u = 0; u < LANES / S; ++u) to[(i / S + u) * BLOCK] = words[u];
    }
  }
  static void take_key(char* block, int lane, int dim, float* x) {
    const T* from = reinterpret_cast<const T*>(key_words<NumberCache>(block, lane));
    for (int i = 0; i < dim; ++i) x[i] = K::to_float(from[i / S * BLOCK * S + i % S]);
  }
  static void put_value(char* block, int lane, int dim, const float* x) {
    T numbers[LANES], *to = value_elements<NumberCache>(block, dim, lane);
    for (int i = 0; i < dim; i += LANES) {
      K::store(numbers, load(x + i));
      for (int j = 0; j < LANES; ++j) to[(i + j) * S] = numbers[j];
    }
  }
  static float put_weights(const float* x, int n, const float*, typename K::Unit* out) {
    for (int i = 0; i < n; i += LANES) K::put(reinterpret_cast<typename K::A*>(out) + i, load(x + i));
    return 1;
  }
  static Words pick(Words from, int parity, int to) { return K::pick(from, parity, to); }
  static Floats nothing() { return zeros(); }
  static Floats mixed(Floats sum, float) { return sum; }
};

// Products of bytes of queries and bytes of keys.
struct ByteKeys {
  using Unit = uint32_t;
  using Sum = Words;
  static inline constexpr int PARTS = BYTE_KEY_PARTS;
  static auto part(Words w, int which) { return byte_key_part(w, which); }
  template <class Part>
  static Words madd(Words sum, Part keys, const uint32_t& query, int which) {
    return dot_byte_keys(sum, keys, query, which);
  }
};

// Products of 16-bit weights and bytes of values. 512 products fit in a sum: 127 * 32767 * 512 < 2^31.
struct ByteValues {
  struct Unit {
    uint32_t pair[2];
  };
  using Sum = Words;
  static inline constexpr int PARTS = 2;
  static Words part(Words w, int which) { return which ? high_bytes(w) : low_bytes(w); }
  static Words madd(Words sum, Words values, const Unit& weights, int which) {
    return dot_shorts(sum, values, weights.pair[which]);
  }
};

// Bytes with a float32 scale per token and head. Queries are bytes, too, so scores are exact integers times scales.
// Queries and keys are first rotated by a Hadamard matrix, which spreads a head's few large numbers over all numbers.
struct ByteCache {
  using Keys = ByteKeys;
  using Values = ByteValues;
  using T = int8_t;
  static inline constexpr int S = 4, SCALE_BYTES = 4, LONGEST_HEAD = 1024;

  // The low bytes of a lane's halves are one part, so they have the first two positions.
  static constexpr int place(int s) { return s == 1 ? 2 : s == 2 ? 1 : s; }
  static int query_words(int dim) { return dim / S + 2; }
  static void put_query(const float* x, int dim, uint32_t* out) {
    float turned[LONGEST_HEAD];
    std::copy(x, x + dim, turned);
    hadamard(turned, dim);
    int total;
    const float scale = quantise(turned, dim, reinterpret_cast<int8_t*>(out), total);
    const int start = BYTE_KEY_OFFSET * total;
    std::memcpy(out + dim / S, &scale, 4), std::memcpy(out + dim / S + 1, &start, 4);
  }
  static Words begin(const uint32_t* query, int dim) { return spread(int32_t(query[dim / S + 1])); }
  static Floats score(Words sum, const char* block, const uint32_t* query, int dim) {
    float scale;
    std::memcpy(&scale, query + dim / S, 4);
    return mul(to_floats(sum), mul(load(scales(block)), spread(scale)));
  }
  static void put_key(char* block, int lane, int dim, const float* x) {
    float turned[LONGEST_HEAD];
    std::copy(x, x + dim, turned);
    hadamard(turned, dim);
    uint32_t words[LONGEST_HEAD / S], *to = key_words<ByteCache>(block, lane);
    int total;
    scales(block)[lane] = quantise(turned, dim, reinterpret_cast<int8_t*>(words), total);
    for (int i = 0; i < dim / S; ++i) to[i * BLOCK] = words[i];
  }
  static void take_key(char* block, int lane, int dim, float* x) {
    const int8_t* from = reinterpret_cast<const int8_t*>(key_words<ByteCache>(block, lane));
    for (int i = 0; i < dim; ++i) x[i] = scales(block)[lane] * from[i / S * BLOCK * S + i % S];
    hadamard(x, dim);
  }
  static void put_value(char* block, int lane, int dim, const float* x) {
    int8_t bytes[LONGEST_HEAD], *to = value_elements<ByteCache>(block, dim, lane);
    int total;
    scales(block)[lane] = quantise(x, dim, bytes, total);
    for (int i = 0; i < dim; ++i) to[i * S] = bytes[i];
  }
  // `scales`: scale of each weight's value.
  static float put_weights(float* x, int n, const float* scales, ByteValues::Unit* out) {
    Words top = no_bits();
    for (int i = 0; i < n; i += LANES) {
      const Floats scaled = keep_first(mul(load(x + i), load(scales + i)), n - i);
      store(x + i, scaled);
      top = most(top, magnitudes(scaled));
    }
    const WholeScale whole(top, 32767);
    for (int i = 0; i < n; i += LANES) store_shorts(reinterpret_cast<int16_t*>(out) + i, mul(load(x + i), whole.inverse));
    return whole.scale;
  }
  static Words pick(Words from, int lane, int to) { return byte_to(from, place(lane), place(to)); }
  static Words nothing() { return no_bits(); }
  static Floats mixed(Words sum, float scale) { return mul(to_floats(sum), spread(scale)); }

 private:
  static float* scales(char* block) { return reinterpret_cast<float*>(block); }
  static const float* scales(const char* block) { return reinterpret_cast<const float*>(block); }
  // Rounds numbers over their scale to bytes; `total` gets the sum of the bytes.
  static float quantise(const float* x, int n, int8_t* out, int& total) {
    Words top = no_bits(), all = no_bits();
    for (int i = 0; i < n; i += LANES) top = most(top, magnitudes(load(x + i)));
    const WholeScale whole(top, 127);
    for (int i = 0; i < n; i += LANES) {
      const Words bytes = to_words(mul(load(x + i), whole.inverse));
      all = add(all, bytes);
      store_low_bytes(out + i, bytes);
    }
    total = sum(all);
    return whole.scale;
  }
};

// Calls f with the class of a cache's storage.
template <class Do>
auto with_cache(CacheKind kind, Do f) {
  if (kind == BYTES_CACHE) return f(ByteCache());
  if (kind == BFLOAT16_CACHE) return f(NumberCache<Bf16>());
  return f(NumberCache<Float32>());
}

}  // namespace specinfer
