// Matrices in the tiles in which they are multiplied (products.h): a tile has some columns over all of k.
#pragma once
#include <sys/mman.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <vector>

#include "bindings.h"
#include "products/block_float.h"
#include "products/blocks.h"
#include "simd/numbers.h"
#include "simd/threads.h"

namespace specinfer {

// Calls f(format) for a storage in blocks; returns false for others. The only list of block formats.
template <class Do>
bool with_format(Storage storage, Do f) {
  switch (storage) {
    case Q4_0: f(Q4_0Blocks()); return true;
    case Q4_1: f(Q4_1Blocks()); return true;
    case Q5_0: f(Q5_0Blocks()); return true;
    case Q5_1: f(Q5_1Blocks()); return true;
    case Q8_0: f(Q8_0Blocks()); return true;
    case Q2_K: f(Q2_KBlocks()); return true;
    case Q3_K: f(Q3_KBlocks()); return true;
    case Q4_K: f(Q4_KBlocks()); return true;
    case Q5_K: f(Q5_KBlocks()); return true;
    case Q6_K: f(Q6_KBlocks()); return true;
    case IQ4_NL: f(IQ4_NLBlocks()); return true;
    case IQ4_XS: f(IQ4_XSBlocks()); return true;
    case MXFP4: f(MXFP4Blocks()); return true;
    default: return false;
  }
}

// Memory on huge pages: with small pages, address translation costs a tenth of the bandwidth. Parts of a model share runs of
// pages; a run is freed with the last of its parts.
class Arena {
 public:
  std::shared_ptr<char> take(size_t bytes) {
    bytes = (bytes + 63) & ~size_t(63);
    if (!run_ || used_ + bytes > size_) {
      size_ = std::max(bytes, RUN), used_ = 0;
      run_ = std::shared_ptr<char>(static_cast<char*>(std::aligned_alloc(HUGE_PAGE, size_)), std::free);
      if (!run_) throw std::bad_alloc();
      madvise(run_.get(), size_ & ~(HUGE_PAGE - 1), MADV_HUGEPAGE);
    }
    used_ += bytes;
    return {run_, run_.get() + used_ - bytes};
  }

 private:
  static inline constexpr size_t HUGE_PAGE = size_t(2) << 20, RUN = 8 * HUGE_PAGE;
  std::shared_ptr<char> run_;
  size_t size_ = 0, used_ = 0;
};

struct Matrix {
  int n = 0, k = 0, width = 0;   // columns, depth, columns of a tile
  size_t tile_bytes = 0;
  Storage storage = F32;
  Prepared input = PLAIN;        // form of its activations
  std::shared_ptr<char> packed;  // owns the tiles, unless `place` was called
  const char* data = nullptr;    // address of the tiles
  std::vector<float> bias;
  std::vector<float> scale;      // per packed column; block floating point only
  float factor = 1;              // on outputs: of gate, down, out and the recurrent layers' matrices
  int tiles() const { return n ? (n + width - 1) / width : 0; }
  size_t bytes() const { return tiles() * tile_bytes; }
  const char* tile(int i) const { return data + i * tile_bytes; }
  // Allocates memory for the tiles.
  char* own(Arena& arena) {
    packed = arena.take(bytes());
    data = packed.get();
    return packed.get();
  }
  // Sets another address of the tiles; frees our own.
  void place(const char* at) { packed.reset(), data = at; }
};

// Calls f(column) for all columns of zeroed tiles.
template <class Do>
void for_columns(const Matrix& m, Do f) {
  char* out = m.packed.get();
#pragma omp parallel for
  for (int tile = 0; tile < m.tiles(); ++tile) {
    std::memset(out + tile * m.tile_bytes, 0, m.tile_bytes);
    for (int c = tile * m.width; c < std::min(m.n, (tile + 1) * m.width); ++c) f(c);
  }
}

// Packs a dense matrix [n, k] into tiles of lines: a line has S numbers of each of 16 columns.
template <class Kind>
void pack_dense(Matrix& m, Arena& arena, const typename Kind::T* source, int vectors) {
  const int steps = m.k / Kind::S;
  m.width = vectors * LANES, m.tile_bytes = size_t(steps) * vectors * 64;
  auto* out = reinterpret_cast<typename Kind::T*>(m.own(arena));
  for_columns(m, [&](int c) {
    auto* column = out + size_t(c / m.width) * m.width * m.k + c % m.width / LANES * LANES * Kind::S;
    for (int i = 0; i < m.k; ++i)
      column[size_t(i / Kind::S) * m.width * Kind::S + Kind::place(c % LANES, i % Kind::S)] = source[size_t(c) * m.k + i];
  });
}

// Packs a bfloat16 matrix in block floating point.
inline void pack_block_float(Matrix& m, Arena& arena, const uint16_t* source, int vectors) {
  m.width = vectors * LANES, m.tile_bytes = size_t(m.k) / 2 * vectors * 64, m.storage = BLOCK_FLOAT, m.input = BLOCK_FLOAT_ROWS;
  m.scale.assign(size_t(m.tiles()) * m.width, 0);
  auto* out = reinterpret_cast<int16_t*>(m.own(arena));
  for_columns(m, [&](int c) {
    const uint16_t* w = source + size_t(c) * m.k;
    const float scale = m.scale[c] = weight_scale(w, m.k);
    int16_t* column = out + size_t(c / m.width) * m.width * m.k + c % m.width * 2;
    for (int i = 0; i < m.k; ++i) column[size_t(i / 2) * m.width * 2 + i % 2] = int16_t(std::lrint(from_bf16(w[i]) / scale));
  });
}

// Packs blocks of GGUF, [n][k / WEIGHTS].
template <class F>
void pack_blocks(Matrix& m, Arena& arena, const uint8_t* source) {
  using B = Blocks<F>;
  m.width = TILE, m.tile_bytes = B::tile_bytes(m.k), m.input = B::INPUT;
  char* out = m.own(arena);
  const int blocks = m.k / F::WEIGHTS;
#pragma omp parallel for
  for (int tile = 0; tile < m.tiles(); ++tile) {
    char* to = out + tile * m.tile_bytes;
    const int columns = std::min(TILE, m.n - tile * TILE);
    if (columns < TILE) std::memset(to, 0, m.tile_bytes);
    for (int b = 0; b < blocks; ++b, to += B::BLOCK_BYTES)
      for (int c = 0; c < columns; ++c) B::put(to, c, source + (size_t(tile * TILE + c) * blocks + b) * F::BYTES);
  }
}

// Packs a matrix from its rows [n, k] in any storage. `vectors`: of 16 columns, per tile of a dense matrix.
inline void pack(Matrix& m, Arena& arena, Storage storage, const void* source, int n, int k, int vectors) {
  m.n = n, m.k = k, m.storage = storage, m.input = PLAIN;
  if (with_format(storage, [&](auto format) { pack_blocks<decltype(format)>(m, arena, static_cast<const uint8_t*>(source)); })) return;
  const auto* halves = static_cast<const uint16_t*>(source);
  if (storage == F32) return pack_dense<Float32>(m, arena, static_cast<const float*>(source), vectors);
  if (storage == F16) return pack_dense<Float16>(m, arena, halves, vectors);
  if (!MULTIPLIES_BF16 && k % LANES == 0) return pack_block_float(m, arena, halves, vectors);
  if (MULTIPLIES_BF16) m.input = BF16_ROWS;
  pack_dense<Bf16>(m, arena, halves, vectors);
}

// Reads a row of a table [rows, k] in any storage except block floating point.
inline void read_row(Storage storage, const void* table, int row, int k, float* to) {
  const auto* bytes = static_cast<const uint8_t*>(table);
  if (with_format(storage, [&](auto format) {
        using F = decltype(format);
        const uint8_t* block = bytes + size_t(row) * (k / F::WEIGHTS) * F::BYTES;
        for (int i = 0; i < k; i += F::WEIGHTS, block += F::BYTES) dequantise<F>(block, to + i);
      }))
    return;
  if (storage == F32) return void(std::memcpy(to, bytes + size_t(row) * k * 4, size_t(k) * 4));
  const auto* halves = reinterpret_cast<const uint16_t*>(bytes) + size_t(row) * k;
  for (int i = 0; i < k; ++i) to[i] = storage == F16 ? from_half(halves[i]) : from_bf16(halves[i]);
}

// Requantises a table [rows, k] in any storage except block floating point to blocks of Q4_0, [rows][k / 32].
inline void requantise(Storage storage, const void* table, int rows, int k, uint8_t* to) {
  const size_t bytes = size_t(k) / UNIT * Q4_0Blocks::BYTES;
#pragma omp parallel
  {
    std::vector<float> numbers(k);
#pragma omp for
    for (int row = 0; row < rows; ++row) {
      read_row(storage, table, row, k, numbers.data());
      for (int i = 0; i < k / UNIT; ++i) quantise_q4_0(numbers.data() + i * UNIT, to + row * bytes + i * Q4_0Blocks::BYTES);
    }
  }
}

}  // namespace specinfer
