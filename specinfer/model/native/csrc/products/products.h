// Products of packed matrices with a few rows.
#pragma once
#include <algorithm>
#include <type_traits>

#include "products/matrix.h"

namespace specinfer {

// What to prefetch while a tile is multiplied: `lines` cache lines per line of the tile from `at`, then `advance` bytes.
struct Ahead {
  const char* at;
  int lines, advance;
};

// The first tile a thread will need of a matrix.
inline const char* first_tile(const Matrix& m, int s, int thread, int threads) {
  return m.data + share(m.tiles(), thread, threads).begin * m.tile_bytes(s);
}

// MR rows, `stride` units each, times some steps of V of the NV vectors of a tile: out[r][c] = sum over k in order, going on
// from what is there or from zero. A function of its own, so that it has all registers for itself.
template <class Kind, int MR, int NV, int V>
__attribute__((noinline)) void sweep(const typename Kind::Unit* a, size_t stride, const char* w, int steps, float* out, bool go_on,
                                     Ahead ahead) {
  typename Kind::Sum acc[MR][V];
  const char* at[V];
  times<V>([&](auto v) INLINED { at[v] = w + v * 64; });
  const auto next_line = [&]() INLINED {
    if constexpr (V == 1) _mm_prefetch(ahead.at, _MM_HINT_T0);  // where nothing has to be fetched this does no harm
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
      times<Kind::SPAN>(take_step);  // in a loop sums would go to memory; beside two vectors they would without one
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

// The same for all vectors of the tile, as many at a time as have room in registers. Every sweep fetches its part.
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

// Most steps that two pieces of rows take turns over: 12 kB of a tile, and as much of what is fetched meanwhile.
inline constexpr int TURN = 48;

// Steps of a turn, whole spans: turns of equal length, as each fetches for the next as much as it reads itself. With turns of 48
// and 24 steps seven rows took 3.3 ms, with two of 36 or three of 24 2.5 ms (Zen 4, 66 MB of 4-bit blocks).
template <class Kind>
int equal_turn(int steps) {
  const int turns = (steps + TURN - 1) / TURN, span = std::min(TURN, Kind::SPAN);
  return ((steps + turns - 1) / turns + span - 1) / span * span;
}

// Columns of `range` tiles for all rows; `finish(row, first column, values)` gets each row of a tile.
//
// Rows that one sweep is enough for: the tile streams from memory, prefetched 4 kB ahead. Several sweeps or pieces of
// rows: the first finds the tile in the cache because those of the tile before fetched it, each its part, while
// they computed. So memory and arithmetic overlap, and sixteen rows cost little more than one. The last tile
// fetches `next`, the first one of the matrix that follows. Two pieces take turns over parts of a wide tile that
// stay in the first-level cache; with more pieces, putting the sums aside so often costs more than that brings.
template <class Kind, int NV, class Finish>
void multiply_tiles(const Matrix& m, const typename Kind::Unit* a, int rows, Range range, const char* next, Finish finish) {
  constexpr int MR = std::max(SUMS / NV, ROWS);
  const int steps = m.k / Kind::S, pieces = (rows + MR - 1) / MR;
  const bool streams = rows <= SUMS / NV;
  const int turn = NV == WIDE && pieces == 2 ? equal_turn<Kind>(steps) : steps, stride = Kind::units(steps);
  const size_t bytes = lines<Kind>(steps) * NV * 64;
  alignas(64) float out[2 * MR * NV * LANES];
  for (int tile = range.begin; tile < range.end; ++tile) {
    const char* w = m.data + tile * bytes;
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

// What a thread needs for products: activations in the numbers that matrices are multiplied with.
struct Scratch {
  ByteRows bytes;
  BlockFloatRows block_float;
  GroupRows groups;
  GroupByteRows group_bytes;
};

// The same for a matrix of blocks, with activations put into `groups`.
template <class Kind, int NV, class Groups, class Finish>
void multiply_blocks(const Matrix& m, const Bf16::A* a, int rows, Range range, Groups& groups, const char* next, Finish finish) {
  groups.fill(a, rows, m.k);
  const auto* units = reinterpret_cast<const typename Kind::Unit*>(groups.words.data());
  multiply_tiles<Kind, NV>(m, units, rows, range, next, finish);
}

// The same, with activations put into the numbers that the matrix is multiplied with.
template <class Kind, int NV, class Finish>
void multiply(const Matrix& m, const typename Kind::A* a, int rows, Range range, Scratch& scratch, const char* next,
              Finish finish) {
  if constexpr (std::is_same_v<Kind, Bf16>) {
    if (m.storage == Q4_1) return multiply_blocks<Nibbles, NV>(m, a, rows, range, scratch.groups, next, finish);
    if (m.storage == Q4_1_A8) return multiply_blocks<NibblesA8, NV>(m, a, rows, range, scratch.group_bytes, next, finish);
    if constexpr (DOTS_WHOLE_BYTES)
      if (m.storage == Q8_0_A8) return multiply_blocks<OctetsA8, NV>(m, a, rows, range, scratch.group_bytes, next, finish);
    if (m.storage == Q8_0) return multiply_blocks<Octets, NV>(m, a, rows, range, scratch.groups, next, finish);
    if (m.storage == W8A8) {
      scratch.bytes.fill(a, rows, m.k);
      return multiply_tiles<Bytes, NV>(m, scratch.bytes.units.data(), rows, range, next, [&](int row, int col, float* v) {
        for (int i = 0; i < NV * LANES; i += LANES)
          Bytes::finish(v + i, &m.excess[col + i], &m.scale[col + i], scratch.bytes.scales[row]);
        finish(row, col, v);
      });
    }
  }
  if constexpr (std::is_same_v<Kind, Bf16> && !MULTIPLIES_BF16) {
    if (m.storage == BLOCK_FLOAT) {
      scratch.block_float.fill(a, rows, m.k);
      return multiply_tiles<BlockFloat, NV>(m, scratch.block_float.units.data(), rows, range, next, [&](int row, int col, float* v) {
        for (int i = 0; i < NV * LANES; i += LANES) BlockFloat::finish(v + i, &m.scale[col + i]);
        finish(row, col, v);
      });
    }
  }
  multiply_tiles<Kind, NV>(m, reinterpret_cast<const typename Kind::Unit*>(a), rows, range, next, finish);
}

}  // namespace specinfer
