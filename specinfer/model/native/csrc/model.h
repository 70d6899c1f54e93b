// A decoder as the kernels hold it, and what one pass over it is.
#pragma once
#include <cmath>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "products/matrix.h"

namespace specinfer {

struct Norm {
  std::vector<float> weight, bias;  // with a bias: by mean and variance instead of the root mean square
};

struct Layer {
  Norm input_norm, post_norm;
  std::vector<float> q_norm, k_norm;
  Matrix qkv, out, up, down;  // up: with the gate beside it if there is one
};

enum Activation { SILU, GELU, RELU };

struct Shape {
  int layers, hidden, inter, heads, kv_heads, dim, vocab, max_positions;
  int rotary;  // first dimensions of a head that are turned by its position; none if positions are learnt
  int activation, gated;
  int parallel;  // attention and MLP read the same hidden states
  float eps;
};

struct Model {
  Shape shape;
  bool bf16;
  std::vector<Layer> layers;
  Norm final_norm;
  Matrix head;
  const void* embedding = nullptr;
  std::vector<float> cos, sin;   // [positions, rotary / 2]
  std::vector<float> positions;  // [positions, hidden], if they are learnt
  // buffers of the largest pass so far
  std::vector<float> x, qkv;
  std::vector<uint32_t> normed, query, attended, inner;  // activations as the kind of numbers keeps them
};

// One pass; every array is flat. See specinfer/model/batch.py for the meaning.
struct Pass {
  int tokens, sequences, logits;
  const int32_t *token_ids, *positions, *write_slots, *visible;
  const int32_t *extra_start, *extra;          // CSR over tokens: further positions each one sees
  const int32_t* row_start;                    // per sequence: first token (sequences + 1)
  const int32_t *block_start, *blocks;         // CSR over sequences: block tables
  const int32_t* logit_rows;
  void *keys, *values;                         // [layers, ...]
  int64_t cache_blocks;
  float* logits_out;
  int threads;
  int sparse = 0;                              // few of the logits will be read: they need not stay in the caches
};

// Columns of gate in a wide tile, and as many of up beside them.
inline constexpr int GATE = WIDE / 2 * LANES;

// Which columns a matrix has, how deep it is, how wide its tiles are; `fill(matrix, columns, k, vectors, rows)`.
template <class Fill>
void set_matrix(Model& m, int layer, int which, Fill fill) {
  const Shape& s = m.shape;
  const int qkv = (s.heads + 2 * s.kv_heads) * s.dim;
  const auto rows_up_to = [](int n) { return [n](int c) { return c < n ? c : -1; }; };
  if (which == 4) return fill(m.head, s.vocab, s.hidden, WIDE, rows_up_to(s.vocab));
  Layer& l = m.layers[layer];
  if (which == 0) fill(l.qkv, qkv, s.hidden, 2, rows_up_to(qkv));
  if (which == 1) fill(l.out, s.hidden, s.heads * s.dim, 2, rows_up_to(s.hidden));
  if (which == 2 && !s.gated) fill(l.up, s.inter, s.hidden, WIDE, rows_up_to(s.inter));
  if (which == 2 && s.gated) {
    const int padded = (s.inter + GATE - 1) / GATE * GATE;
    fill(l.up, 2 * padded, s.hidden, WIDE, [&s](int c) {
      const int column = c / (2 * GATE) * GATE + c % GATE;
      if (column >= s.inter) return -1;
      return c % (2 * GATE) < GATE ? column : s.inter + column;
    });
  }
  if (which == 3) fill(l.down, s.hidden, s.inter, 2, rows_up_to(s.hidden));
}

template <class Kind>
void set_dense(Model& m, int layer, int which, const void* data) {
  const auto* from = static_cast<const typename Kind::T*>(data);
  set_matrix(m, layer, which, [from](Matrix& to, int columns, int k, int vectors, auto rows) {
    if constexpr (std::is_same_v<Kind, Bf16> && !MULTIPLIES_BF16)
      if (k % LANES == 0) return pack_block_float(to, from, columns, k, vectors, rows);
    pack<Kind>(to, from, columns, k, vectors, rows);
  });
}

}  // namespace specinfer
