// Products of packed matrices and a few rows.
#pragma once
#include <algorithm>
#include <type_traits>

#include "products/matrix.h"

namespace specinfer {

// Prefetches during a tile's product: per line of the tile `lines` cache lines from `at`, which then advances by `advance`.
struct Ahead {
  const char* at;
  int lines, advance;
};

// Matrices that read the same input in turn, and each one's tiles that a thread multiplies: whole runs of SHARED columns,
// about equally many per thread. Matrices with equal numbers of columns are divided alike.
template <int N>
struct Shares {
  static inline constexpr int SHARED = 64;
  const Matrix* matrix[N];
  Range tiles[N];

  Shares(const Matrix* const (&matrices)[N], int thread, int threads) {
    const auto runs = [](const Matrix& m) { return (m.n + SHARED - 1) / SHARED; };
    int all = 0, before = 0;
    for (const Matrix* m : matrices) all += runs(*m);
    const Range mine = share(all, thread, threads);
    for (int i = 0; i < N; before += runs(*matrices[i]), ++i) {
      const auto tile = [&](int run) {
        const int columns = std::clamp(run - before, 0, runs(*matrices[i])) * SHARED;
        return std::min(columns / matrices[i]->width, matrices[i]->tiles());
      };
      matrix[i] = matrices[i], tiles[i] = {tile(mine.begin), tile(mine.end)};
    }
  }
  // Returns the first tile of matrix i or of a later one; `otherwise` if there is none.
  const char* first(int i, const char* otherwise) const {
    for (; i < N; ++i)
      if (tiles[i].begin < tiles[i].end) return matrix[i]->tile(tiles[i].begin);
    return otherwise;
  }
  // Returns the forms of activations that the matrices read.
  int inputs() const {
    int ways = PLAIN;
    for (const Matrix* m : matrix) ways |= m->input;
    return ways;
  }
};

// MR rows, `stride` units each, times some steps of V of a tile's NV vectors: out[r][c] = sum over k in order, added to the
// present sum if `go_on`. A function of its own, so that it can use all registers.
template <class Kind, int MR, int NV, int V>
__attribute__((noinline)) void sweep(const typename Kind::Unit* a, size_t stride, const char* w, int steps, float* out, bool go_on,
                                     Ahead ahead) {
  typename Kind::Sum acc[MR][V];
  const char* at[V];
  times<V>([&](auto v) INLINED { at[v] = w + v * 64; });
  const auto next_line = [&]() INLINED {
    if constexpr (V == 1) _mm_prefetch(ahead.at, _MM_HINT_T0);  // harmless if nothing needs to be prefetched
    else for (int i = 0; i < ahead.lines; ++i) _mm_prefetch(ahead.at + i * 64, _MM_HINT_T0);
    times<V>([&](auto v) INLINED { at[v] += NV * 64; });
    ahead.at += ahead.advance;
  };
  while (steps > 0) {
    times<V>([&](auto v) INLINED {
      times<MR>([&](auto r) INLINED { acc[r][v] = Kind::begin(out + (r * NV + v) * LANES, go_on); });
    });
    const int span = Kind::HEAD ? Kind::SPAN : std::min(Kind::SPAN, steps);
    const char* head = at[0];
    if constexpr (Kind::HEAD) next_line();
    const auto take_step = [&](int step) INLINED {
      multiply_step<Kind>(acc, at, [&](auto r) INLINED -> auto& { return a[r * stride + step]; });
      next_line();
    };
    if constexpr (Kind::HEAD && V == 1) {
      times<Kind::SPAN>(take_step);  // a loop would keep sums in memory; with two vectors, the lack of one would
    } else if constexpr (Kind::UNROLLS) {
#pragma GCC unroll UNROLLED
      for (int step = 0; step < span; ++step) take_step(step);
    } else {
#pragma GCC unroll 1
      for (int step = 0; step < span; ++step) take_step(step);
    }
    times<V>([&](auto v) INLINED {
      const auto scales = Kind::head(head + v * 64);
      times<MR>([&](auto r) INLINED { Kind::end(out + (r * NV + v) * LANES, acc[r][v], a + r * stride, scales, go_on); });
    });
    a += Kind::units(span), steps -= span, go_on = true;
  }
}

// Multiplies MR rows by all NV vectors of a tile: one `sweep` per as many vectors as registers allow. Each prefetches its part.
template <class Kind, int MR, int NV>
inline void micro(const typename Kind::Unit* a, size_t stride, const char* w, int steps, float* out, bool go_on, Ahead ahead) {
  constexpr int V = std::clamp(SUMS / MR, 1, NV), sweeps = NV / V;
  const int advance = ahead.advance / sweeps, lines = (ahead.lines + sweeps - 1) / sweeps;
  for (int i = 0; i < sweeps; ++i)
    sweep<Kind, MR, NV, V>(a, stride, w + i * V * 64, steps, out + i * V * LANES, go_on,
                           {ahead.at + i * specinfer::lines<Kind>(steps) * advance, lines, advance});
}

template <class Kind, int NV, int MR>
inline void micro_rows(int rows, const typename Kind::Unit* a, size_t stride, const char* w, int steps, float* out, bool go_on,
                       Ahead ahead) {
  if (rows == MR) return micro<Kind, MR, NV>(a, stride, w, steps, out, go_on, ahead);
  if constexpr (MR > 1) micro_rows<Kind, NV, MR - 1>(rows, a, stride, w, steps, out, go_on, ahead);
}

// Maximum steps of a turn of two pieces of rows: 12 kB of a tile, and as many prefetched bytes.
inline constexpr int TURN = 48;

// Steps of a turn, in whole spans. Turns have equal lengths, as each prefetches for the next as much as it reads. With turns
// of 48 and 24 steps seven rows took 3.3 ms; with two of 36 or three of 24, 2.5 ms (Zen 4, 66 MB of 4-bit blocks).
template <class Kind>
int equal_turn(int steps) {
  const int turns = (steps + TURN - 1) / TURN, span = std::min(TURN, Kind::SPAN);
  return ((steps + turns - 1) / turns + span - 1) / span * span;
}

// Multiplies `range` of tiles by all rows; calls `finish(row, first column, values)` for each row of a tile.
//
// If one sweep computes all rows, the tile streams from memory, prefetched 4 kB ahead. With several sweeps or pieces of rows,
// each prefetches its part of the next tile while it computes, so the next tile's first sweep finds it in the cache. So
// memory and arithmetic overlap, and sixteen rows cost little more than one. The last tile prefetches `next`, the first
// tile of the next matrix. Two pieces take turns over parts of a wide tile that stay in the L1 cache; with more pieces,
// storing the sums so often costs more than that gains.
template <class Kind, int NV, class Finish>
void multiply_tiles(const Matrix& m, const typename Kind::Unit* a, int rows, Range range, const char* next, Finish finish) {
  constexpr int MR = std::max(SUMS / NV, ROWS);
  const int steps = m.k / Kind::S, pieces = (rows + MR - 1) / MR;
  const bool streams = rows <= SUMS / NV;
  const int turn = NV == WIDE && pieces == 2 ? equal_turn<Kind>(steps) : steps, stride = Kind::units(steps);
  const size_t bytes = lines<Kind>(steps) * NV * 64;
  alignas(64) float out[2 * MR * NV * LANES];
  for (int tile = range.begin; tile < range.end; ++tile) {
    const char* w = m.tile(tile);
    const char* following = tile + 1 < range.end ? w + bytes : next;
    for (int step = 0; step < steps; step += turn) {
      const int n = std::min(turn, steps - step);
      const size_t part = lines<Kind>(n) * NV * 64;
      const char* here = w + lines<Kind>(step) * NV * 64;
      const char* then = step + n < steps ? here + part : following;
      for (int piece = 0; piece < pieces; ++piece) {
        const Range r = share(rows, piece, pieces);
        const Ahead ahead = streams ? Ahead{w + 4096, NV, NV * 64}
                                    : Ahead{then + part * piece / pieces, (NV + pieces - 1) / pieces, NV * 64 / pieces};
        float* sums = out + (turn < steps ? r.begin : 0) * NV * LANES;
        const typename Kind::Unit* from = a + size_t(r.begin) * stride + Kind::units(step);
        micro_rows<Kind, NV, MR>(r.end - r.begin, from, stride, here, n, sums, step > 0, ahead);
        if (step + n < steps) continue;
        for (int i = r.begin; i < r.end; ++i) finish(i, tile * NV * LANES, sums + (i - r.begin) * NV * LANES);
      }
    }
  }
}

// Calls `sweep_blocks` for `rows` rows, from 1 to MR, as a constant.
template <class F, int MR>
inline void sweep_rows(int rows, const ByteUnit* a, size_t stride, const char* w, int blocks, float* out, const char* fetch, int lines) {
  if (rows == MR) return sweep_blocks<F, MR>(a, stride, w, blocks, out, fetch, lines);
  if constexpr (MR > 1) sweep_rows<F, MR - 1>(rows, a, stride, w, blocks, out, fetch, lines);
}

// Multiplies `range` of the tiles of a matrix in GGUF blocks by all rows; `next` and `finish` as in `multiply_tiles`.
template <class F, class Finish>
void multiply_blocks(const Matrix& m, const ByteUnit* a, int rows, Range range, const char* next, Finish finish) {
  using B = Blocks<F>;
  const int blocks = m.k / F::WEIGHTS, units = m.k / UNIT, pieces = (rows + BLOCK_ROWS - 1) / BLOCK_ROWS;
  // Lines of the next tile that each piece prefetches per unit. A single piece streams, and prefetches its own tile 4 kB
  // ahead, scales included: without scales a row took 43 instead of 31 ms (Zen 4, 980 MB of Q4_K and Q6_K).
  const int lines = int(((pieces == 1 ? B::BLOCK_BYTES / B::UNITS : m.tile_bytes / pieces / units) + 63) / 64);
  alignas(64) float out[BLOCK_ROWS * TILE];
  for (int tile = range.begin; tile < range.end; ++tile) {
    const char* w = m.tile(tile);
    const char* following = tile + 1 < range.end ? w + m.tile_bytes : next;
    for (int piece = 0; piece < pieces; ++piece) {
      const Range r = share(rows, piece, pieces);
      const char* fetch = pieces == 1 ? w + 4096 : following + m.tile_bytes / pieces * piece;
      sweep_rows<F, BLOCK_ROWS>(r.end - r.begin, a + size_t(r.begin) * units, units, w, blocks, out, fetch, lines);
      for (int i = r.begin; i < r.end; ++i)
        finish(i, tile * TILE, out + (i - r.begin) * TILE, std::min(TILE, m.n - tile * TILE));
    }
  }
}

// Multiplies a dense matrix, whose tiles have two vectors or WIDE ones.
template <class Kind, class Finish>
void multiply_dense(const Matrix& m, const void* a, int rows, Range range, const char* next, Finish finish) {
  const auto* units = static_cast<const typename Kind::Unit*>(a);
  const auto part = [&](int row, int col, float* v) { finish(row, col, v, std::min(m.width, m.n - col)); };
  if constexpr (WIDE != 2)
    if (m.width == WIDE * LANES) return multiply_tiles<Kind, WIDE>(m, units, rows, range, next, part);
  multiply_tiles<Kind, 2>(m, units, rows, range, next, part);
}

// Multiplies some tiles by rows `of` of the input `x` [rows, k], prepared in the matrix's form; calls
// `finish(row, first column, values, count)` for each row of a tile, counting rows from `of.begin`.
template <class Finish>
void multiply_rows(const Matrix& m, const Inputs& inputs, const float* x, Range of, Range range, const char* next, Finish finish) {
  const int rows = of.end - of.begin;
  const size_t first = of.begin;
  x += first * m.k;
  if (!rows) return;  // a pass without logits
  if (with_format(m.storage, [&](auto format) {
        multiply_blocks<decltype(format)>(m, inputs.bytes(m.input) + first * (m.k / UNIT), rows, range, next, finish);
      }))
    return;
  if (m.storage == F32) return multiply_dense<Float32>(m, x, rows, range, next, finish);
  if (m.storage == F16) return multiply_dense<Float16>(m, x, rows, range, next, finish);
  if (m.storage == BLOCK_FLOAT)
    return multiply_dense<BlockFloat>(m, inputs.block_float() + first * BlockFloat::units(m.k / BlockFloat::S), rows, range, next, [&](int row, int col, float* v, int n) {
      for (int i = 0; i < m.width; i += LANES) BlockFloat::finish(v + i, &m.scale[col + i]);
      finish(row, col, v, n);
    });
  multiply_dense<Bf16>(m, m.input == PLAIN ? static_cast<const void*>(x) : inputs.halves() + first * m.k, rows, range, next, finish);
}

// Multiplies some tiles by all rows of the input; see `multiply_rows`.
template <class Finish>
void multiply(const Matrix& m, const Inputs& inputs, const float* x, int rows, Range range, const char* next, Finish finish) {
  multiply_rows(m, inputs, x, {0, rows}, range, next, finish);
}

}  // namespace specinfer
