// A decoder as the kernels hold it, and what one pass over it is.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "bindings.h"
#include "products/matrix.h"

namespace specinfer {

struct Norm {
  std::vector<float> weight, bias;  // with a bias: by mean and variance instead of the root mean square
};

struct Layer {
  Norm input_norm, post_norm, attended_norm, mlp_norm;
  std::vector<float> q_norm, k_norm;
  int window = 0, table = 0;  // positions that it looks back, 0: all; its rotary table, -1: none
  Matrix qkv, out, up, down;  // up: with the gate beside it if there is one
  Matrix& matrix(int slot) {
    Matrix* all[] = {&qkv, &out, &up, &down};  // in the order of MatrixSlot
    return *all[slot];
  }
};

struct Model {
  Shape shape;
  bool bf16;
  std::vector<Layer> layers;
  Norm final_norm, hidden_norm;
  Matrix head, fc;
  const void* embedding = nullptr;
  std::vector<float> cos, sin;   // [tables, positions, rotary / 2]
  std::vector<float> positions;  // [positions, hidden], if they are learnt
  // buffers of the largest pass so far
  std::vector<float> x, qkv, change;  // change: what a part adds to x, if it is normed
  std::vector<uint32_t> normed, query, attended, inner;  // activations as the kind of numbers keeps them
};

// Columns of gate in a wide tile, and as many of up beside them.
inline constexpr int GATE = WIDE / 2 * LANES;

// Numbers that a layer's first projections read: EAGLE's an embedding and a hidden state.
inline int read_width(const Shape& s) { return s.states ? 2 * s.hidden : s.hidden; }

// Which columns a matrix has, how deep it is, how wide its tiles are; `fill(matrix, columns, k, vectors, rows)`.
template <class Fill>
void set_matrix(Model& m, int layer, int which, Fill fill) {
  const Shape& s = m.shape;
  const int qkv = (s.heads + 2 * s.kv_heads) * s.dim;
  const auto rows_up_to = [](int n) { return [n](int c) { return c < n ? c : -1; }; };
  if (which == FC) return fill(m.fc, s.hidden, s.states * s.hidden, 2, rows_up_to(s.hidden));
  if (which == HEAD) return fill(m.head, s.vocab, s.hidden, WIDE, rows_up_to(s.vocab));
  Layer& l = m.layers[layer];
  if (which == QKV) fill(l.qkv, qkv, read_width(s), 2, rows_up_to(qkv));
  if (which == OUT) fill(l.out, s.hidden, s.heads * s.dim, 2, rows_up_to(s.hidden));
  if (which == UP && !s.gated) fill(l.up, s.inter, s.hidden, WIDE, rows_up_to(s.inter));
  if (which == UP && s.gated) {
    const int padded = (s.inter + GATE - 1) / GATE * GATE;
    fill(l.up, 2 * padded, s.hidden, WIDE, [&s](int c) {
      const int column = c / (2 * GATE) * GATE + c % GATE;
      if (column >= s.inter) return -1;
      return c % (2 * GATE) < GATE ? column : s.inter + column;
    });
  }
  if (which == DOWN) fill(l.down, s.hidden, s.inter, 2, rows_up_to(s.hidden));
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

// Makes the buffers large enough for passes of this many tokens.
template <class Kind>
void prepare(Model& m, size_t tokens) {
  const Shape& s = m.shape;
  const auto words = [](size_t n) { return (n * sizeof(typename Kind::A) + sizeof(uint32_t) - 1) / sizeof(uint32_t); };
  m.x.resize(std::max(m.x.size(), tokens * s.hidden));
  if (!m.layers[0].attended_norm.weight.empty()) m.change.resize(std::max(m.change.size(), tokens * s.hidden));
  m.qkv.resize(std::max(m.qkv.size(), tokens * (s.heads + 2 * s.kv_heads) * s.dim));
  m.normed.resize(std::max(m.normed.size(), words(tokens * std::max(read_width(s), s.states * s.hidden))));
  m.query.resize(std::max(m.query.size(), words(tokens * s.heads * s.dim)));
  m.attended.resize(std::max(m.attended.size(), words(tokens * s.heads * s.dim)));
  m.inner.resize(std::max(m.inner.size(), words(tokens * s.inter)));
}

}  // namespace specinfer
