// Matrices, dense or quantised, in the tiles in which they are multiplied (products.h).
#pragma once
#include <sys/mman.h>

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "block_float.h"
#include "bytes.h"
#include "numbers.h"
#include "threads.h"

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

// How a matrix is stored. Quantised kinds are those of GGUF: groups of 32 along k share a scale (and, for
// Q4_1, a minimum). They are expanded tile by tile to what the bfloat16 numbers that dequantising the whole
// file gives are packed to, so results do not change by a bit, only the bytes read do. W8A8 is multiplied in bytes:
// see bytes.h. BLOCK_FLOAT is how bfloat16 is multiplied where the processor does not do it itself: see block_float.h.
enum Storage { DENSE = 0, Q4_1 = 1, Q8_0 = 2, W8A8 = 3, BLOCK_FLOAT = 4 };
constexpr int GROUP = 32;

struct Matrix {
  int n = 0, k = 0, vectors = 2;  // columns, depth, vectors of 16 columns per tile
  Storage storage = DENSE;
  Arena* packed = nullptr;
  std::vector<float> bias;
  std::vector<float> scale;      // per packed column: W8A8, and all that is multiplied in block floating point
  std::vector<int32_t> excess;   // W8A8: what the zero of unsigned activations adds to a column's sums
  bool expands() const { return storage == Q4_1 || storage == Q8_0; }
  int tiles() const { return (n + vectors * LANES - 1) / (vectors * LANES); }
  int columns() const { return tiles() * vectors * LANES; }  // packed ones
  // Bytes of 32 rows of one vector of columns: per column one scale (and minimum) as float16, then, per
  // step of two rows, 16 bytes of nibble pairs or 32 bytes of byte pairs.
  size_t group_bytes() const { return storage == Q4_1 ? 64 + 256 : 32 + 512; }
  size_t tile_bytes(int s) const {
    if (expands()) return size_t(k / GROUP) * vectors * group_bytes();
    return size_t(k) / (storage == W8A8 ? Bytes::S : s) * vectors * 64;
  }
  ~Matrix() { delete packed; }
};

// Packs rows of a [N, K] matrix; `row_of` maps a packed column to a row of the source, -1 to zeros.
template <class Kind, class RowOf>
void pack(Matrix& m, const typename Kind::T* source, int columns, int k, int vectors, RowOf row_of) {
  using T = typename Kind::T;
  m.n = columns, m.k = k, m.vectors = vectors;
  const int steps = k / Kind::S, width = vectors * LANES;
  m.packed = new Arena(size_t(m.tiles()) * steps * width * sizeof(uint32_t));
  T* out = reinterpret_cast<T*>(m.packed->data());
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
  m.packed = new Arena(bytes);
  std::memset(m.packed->data(), 0, bytes);
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

// Expands one tile to the numbers of `Kind` in the layout of dense tiles. Multiplication and addition round
// separately, as dequantising does.
template <class Kind>
void expand(const Matrix& m, int tile, char* out, const char* ahead) {
  const uint8_t* in = reinterpret_cast<const uint8_t*>(m.packed->data()) + tile * m.tile_bytes(2);
  const size_t bytes = m.group_bytes();
  for (int g = 0; g < m.k / GROUP; ++g)
    for (int v = 0; v < m.vectors; ++v, in += bytes, ahead += bytes) {
      for (size_t i = 0; i < bytes; i += 64) _mm_prefetch(ahead + i, _MM_HINT_T0);
      // in units of the column's scale, if it has one: a power of two, which changes no rounding
      const float* scales = m.scale.empty() ? nullptr : &m.scale[(tile * m.vectors + v) * LANES];
      const Floats unit = scales ? div(spread(1.0f), load(scales)) : spread(1.0f);
      const Floats scale = mul(load_halves(in), unit);
      const Floats least = m.storage == Q4_1 ? mul(load_halves(in + 32), unit) : zeros();
      for (int step = 0; step < GROUP / 2; ++step) {
        Floats x[2];
        if (m.storage == Q4_1) {
          const __m128i pairs = _mm_loadu_si128((const __m128i*)(in + 64 + step * 16));
          const __m128i mask = _mm_set1_epi8(15);
          const __m128i even = _mm_and_si128(pairs, mask), odd = _mm_and_si128(_mm_srli_epi16(pairs, 4), mask);
          x[0] = from_unsigned_bytes(_mm_unpacklo_epi8(even, odd)), x[1] = from_unsigned_bytes(_mm_unpackhi_epi8(even, odd));
          for (int h = 0; h < 2; ++h) x[h] = add(mul(x[h], doubled(scale, h)), doubled(least, h));
        } else {
          const __m128i* pairs = (const __m128i*)(in + 32 + step * 32);
          for (int h = 0; h < 2; ++h) x[h] = mul(from_bytes(_mm_loadu_si128(pairs + h)), doubled(scale, h));
        }
        store_words(out + (size_t(g * (GROUP / 2) + step) * m.vectors + v) * 64, Kind::pack(x[0], x[1]));
      }
    }
}

// The scales in block floating point of a matrix that expands, from the bfloat16 numbers that it stands for.
inline std::vector<float> scales_by_column(const Matrix& m) {
  const int width = m.vectors * LANES;
  std::vector<float> scales(m.columns());
#pragma omp parallel for
  for (int tile = 0; tile < m.tiles(); ++tile) {
    std::vector<uint16_t> numbers(size_t(m.k) * width), column(m.k);
    expand<Bf16>(m, tile, reinterpret_cast<char*>(numbers.data()), m.packed->data());
    for (int c = 0; c < width; ++c) {
      const auto place = places<Bf16::S>(m, c);
      for (int i = 0; i < m.k; ++i) column[i] = numbers[place(i)];
      scales[tile * width + c] = weight_scale(column.data(), m.k);
    }
  }
  return scales;
}

// Blocks of a GGUF tensor [N][K / 32], 20 bytes each (scale, minimum, 16 bytes: low nibbles are elements
// 0-15, high ones 16-31) or 34 (scale, 32 signed bytes), into tiles. `row_of` as for `pack`.
template <class RowOf>
void pack_quantised(Matrix& m, const uint8_t* source, Storage storage, int columns, int k, int vectors, RowOf row_of) {
  make_room(m, storage, 2, columns, k, vectors);
  const int groups = k / GROUP;
  const size_t block = storage == Q4_1 ? 20 : 34, head = storage == Q4_1 ? 4 : 2;
#pragma omp parallel for
  for (int tile = 0; tile < m.tiles(); ++tile)
    for (int g = 0; g < groups; ++g)
      for (int v = 0; v < vectors; ++v) {
        uint8_t* out = reinterpret_cast<uint8_t*>(m.packed->data()) + tile * m.tile_bytes(2) +
                       (size_t(g) * vectors + v) * m.group_bytes();
        for (int c = 0; c < LANES; ++c) {
          const int row = row_of((tile * vectors + v) * LANES + c);
          if (row < 0) continue;
          const uint8_t* in = source + (size_t(row) * groups + g) * block;
          std::memcpy(out + 2 * c, in, 2);
          if (storage == Q4_1) std::memcpy(out + 32 + 2 * c, in + 2, 2);
          for (int e = 0; e < GROUP; ++e) {
            if (storage == Q8_0) {
              out[32 + (e / 2) * 32 + 2 * c + e % 2] = in[head + e];
            } else {
              const int q = e < 16 ? in[head + e] & 15 : in[head + e - 16] >> 4;
              out[64 + (e / 2) * 16 + c] |= uint8_t(q << (e % 2 ? 4 : 0));
            }
          }
        }
      }
  if (!MULTIPLIES_BF16) m.scale = scales_by_column(m);
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
