// Matrices, dense or quantised, in the tiles in which they are multiplied (products.h).
#pragma once
#include <sys/mman.h>

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "bindings.h"
#include "products/block_float.h"
#include "products/blocks.h"
#include "products/bytes.h"
#include "simd/numbers.h"
#include "simd/threads.h"

namespace specinfer {

// Memory on huge pages: with small ones, address translation costs a tenth of the bandwidth.
class Arena {
 public:
  explicit Arena(size_t bytes) : bytes_((bytes + (2u << 20) - 1) & ~size_t((2u << 20) - 1)) {
    data_ = std::aligned_alloc(2u << 20, bytes_);
    if (data_) madvise(data_, bytes_, MADV_HUGEPAGE);
  }
  ~Arena() { std::free(data_); }
  Arena(const Arena&) = delete;
  char* data() const { return static_cast<char*>(data_); }

 private:
  size_t bytes_;
  void* data_;
};

struct Matrix {
  int n = 0, k = 0, vectors = 2;  // columns, depth, vectors of 16 columns per tile
  Storage storage = DENSE;
  Arena* packed = nullptr;       // owns the tiles, unless they were placed elsewhere
  const char* data = nullptr;    // where the tiles lie
  std::vector<float> bias;
  std::vector<float> scale;      // per packed column: W8A8, and all that is multiplied in block floating point
  std::vector<int32_t> excess;   // W8A8: what the zero of unsigned activations adds to a column's sums
  int tiles() const { return (n + vectors * LANES - 1) / (vectors * LANES); }
  int columns() const { return tiles() * vectors * LANES; }  // packed ones
  // Of a tile, `s` numbers to a lane of 32 bits.
  size_t tile_bytes(int s) const {
    if (storage == Q4_1 || storage == Q4_1_A8) return lines<Nibbles>(k / Nibbles::S) * vectors * 64;
    if (storage == Q8_0 || storage == Q8_0_A8) return lines<Octets>(k / Octets::S) * vectors * 64;
    return size_t(k) / (storage == W8A8 ? Bytes::S : s) * vectors * 64;
  }
  // Room of its own for the tiles.
  char* own(size_t bytes) {
    packed = new Arena(bytes);
    data = packed->data();
    return packed->data();
  }
  // The tiles lie elsewhere from now on.
  void place(const char* at) {
    delete packed;
    packed = nullptr, data = at;
  }
  ~Matrix() { delete packed; }
};

// Packs rows of a [N, K] matrix; `row_of` maps a packed column to a row of the source, -1 to zeros.
template <class Kind, class RowOf>
void pack(Matrix& m, const typename Kind::T* source, int columns, int k, int vectors, RowOf row_of) {
  using T = typename Kind::T;
  m.n = columns, m.k = k, m.vectors = vectors;
  const int steps = k / Kind::S, width = vectors * LANES;
  T* out = reinterpret_cast<T*>(m.own(size_t(m.tiles()) * steps * width * sizeof(uint32_t)));
#pragma omp parallel for
  for (int tile = 0; tile < m.tiles(); ++tile)
    for (int step = 0; step < steps; ++step)
      for (int c = 0; c < width; ++c)
        for (int s = 0; s < Kind::S; ++s) {
          const int row = row_of(tile * width + c);
          const size_t at = ((size_t(tile) * steps + step) * width + c) * Kind::S + s;
          out[at] = row < 0 ? T(0) : source[size_t(row) * k + step * Kind::S + s];
        }
}

// Room of zeros for a matrix of this kind, in tiles of steps of S elements.
inline void make_room(Matrix& m, Storage storage, int S, int columns, int k, int vectors) {
  m.n = columns, m.k = k, m.vectors = vectors, m.storage = storage;
  const size_t bytes = m.tiles() * m.tile_bytes(S);
  std::memset(m.own(bytes), 0, bytes);
}

// Where tiles of steps of S elements keep each element of a packed column.
template <int S>
auto places(const Matrix& m, int column) {
  const size_t width = m.vectors * LANES, first = column / width * width * m.k + column % width * S;
  return [=](int i) { return first + i / S * width * S + i % S; };
}

// A bfloat16 matrix in block floating point: rows of whole vectors. `row_of` as for `pack`.
template <class RowOf>
void pack_block_float(Matrix& m, const uint16_t* source, int columns, int k, int vectors, RowOf row_of) {
  make_room(m, BLOCK_FLOAT, BlockFloat::S, columns, k, vectors);
  m.scale.assign(m.columns(), 0);
  int16_t* out = reinterpret_cast<int16_t*>(m.packed->data());
#pragma omp parallel for
  for (int c = 0; c < m.columns(); ++c) {
    const int row = row_of(c);
    if (row < 0) continue;
    const uint16_t* w = source + size_t(row) * k;
    const float scale = m.scale[c] = weight_scale(w, k);
    const auto place = places<BlockFloat::S>(m, c);
    for (int i = 0; i < k; ++i) out[place(i)] = int16_t(std::lrint(from_bf16(w[i]) / scale));
  }
}

// Blocks of a GGUF tensor, [N][K / 32], into tiles of groups: [K / 32][1 + steps][vectors * 16]. `row_of` as for `pack`.
template <class Kind, class RowOf>
void pack_blocks(Matrix& m, const uint8_t* source, Storage storage, int columns, int k, int vectors, RowOf row_of) {
  make_room(m, storage, Kind::S, columns, k, vectors);
  const int groups = k / GROUP, width = vectors * LANES;
#pragma omp parallel for
  for (int c = 0; c < m.columns(); ++c) {
    const int row = row_of(c);
    if (row < 0) continue;
    const uint8_t* block = source + size_t(row) * groups * Kind::BLOCK_BYTES;
    char* out = m.packed->data() + c / width * m.tile_bytes(Kind::S) + c % width / LANES * 64;
    for (int g = 0; g < groups; ++g, block += Kind::BLOCK_BYTES, out += lines<Kind>(Kind::SPAN) * vectors * 64) {
      Kind::put_head(out, c % LANES, block);
      uint32_t* lane = reinterpret_cast<uint32_t*>(out) + c % LANES;
      for (int i = 0; i < GROUP; ++i)
        lane[(Kind::HEAD + i / Kind::S) * width] |= Kind::weight(block, i) << Kind::bit(i % Kind::S);
    }
  }
}

// Rows of a scale (float32) and K signed bytes into tiles of [K/4][vectors * 16][4]. `row_of` as for `pack`.
template <class RowOf>
void pack_bytes(Matrix& m, const uint8_t* source, int columns, int k, int vectors, RowOf row_of) {
  make_room(m, W8A8, Bytes::S, columns, k, vectors);
  m.scale.assign(m.columns(), 0), m.excess.assign(m.columns(), 0);
  int8_t* out = reinterpret_cast<int8_t*>(m.packed->data());
#pragma omp parallel for
  for (int c = 0; c < m.columns(); ++c) {
    const int row = row_of(c);
    if (row < 0) continue;
    const uint8_t* from = source + size_t(row) * (sizeof(float) + k);
    std::memcpy(&m.scale[c], from, sizeof(float));
    const int8_t* w = reinterpret_cast<const int8_t*>(from + sizeof(float));
    const auto place = places<Bytes::S>(m, c);
    for (int i = 0; i < k; ++i) {
      out[place(i)] = w[i];
      m.excess[c] += BYTE_ZERO * w[i];
    }
  }
}

}  // namespace specinfer
