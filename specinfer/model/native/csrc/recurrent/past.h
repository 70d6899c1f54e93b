// Tokens before a row on its path, as recurrent layers store them, and states of blocks.
//
// A state is computed at block ends only, from the state of the block before and its BLOCK tokens. Between, each token stores
// its change of the state: a key, a change and a decay. A row reads the state at its block's beginning and the changes along
// its path since. Both depend on the path alone, so results have the same bits in any pass. Tree nodes need no states of
// their own, and a state is written once per BLOCK tokens.
#pragma once
#include <cstdint>
#include <cstring>

#include "model.h"

namespace specinfer {

// A past token as a row reads it.
struct PastToken {
  const float* inputs;  // [channels] of the convolution
  const float* keys;    // [key heads][key dimension], normed
  const float* deltas;  // [value heads][value dimension]
  const float* decays;  // [value heads] log of the decay since the block's beginning
};

// Memory of a token that is stored.
struct KeptToken {
  float *inputs, *keys, *deltas, *decays;
};

class Past {
 public:
  Past(const Model& m, const Pass& p) : m_(m), p_(p.recurrence), sizes_(m.shape) {}

  // Returns whether a row is stored.
  bool keeps(int row) const { return p_->own[row] != 0; }
  KeptToken own(int row, int place) const {
    float* at = reinterpret_cast<float*>(p_->own[row]) + size_t(place) * sizes_.token;
    float* keys = at + sizes_.channels;
    return {at, keys, keys + sizes_.keys, keys + sizes_.keys + sizes_.values};
  }

  PastToken token(int64_t which, const Layer& l) const {
    if (which < 0) return row(int(-1 - which), l);
    const float* at = reinterpret_cast<const float*>(which) + size_t(l.place) * sizes_.token;
    const float* keys = at + sizes_.channels;
    return {at, keys, keys + sizes_.keys, keys + sizes_.keys + sizes_.values};
  }

  // Returns the number of tokens before a row in its block, and these tokens, oldest first.
  int inside(int row) const { return p_->inside[row]; }
  const int64_t* block(int row) const { return p_->past + p_->past_start[row + 1] - p_->inside[row]; }

  // Returns the convolution's inputs of the token `back` tokens before a row; null before the first token.
  const float* inputs(int row, int back, const Layer& l) const {
    if (back == 0) return this->row(row, l).inputs;
    const int known = p_->past_start[row + 1] - p_->past_start[row];
    if (back <= known) return token(p_->past[p_->past_start[row + 1] - back], l).inputs;
    const float* base = state(p_->tail[row], l);
    if (!base) return nullptr;
    return inputs_of(base) + size_t(m_.shape.convolved - 1 - (back - known)) * sizes_.channels;
  }

  // Returns the state at the beginning of a row's block; null: zeros.
  const float* base(int row, const Layer& l) const { return state(p_->base[row], l); }
  float* state(int64_t which, const Layer& l) const {
    return which ? reinterpret_cast<float*>(which) + size_t(l.place) * sizes_.base : nullptr;
  }
  // Returns a state's last inputs of the convolution, oldest first.
  float* inputs_of(float* base) const { return base + size_t(m_.shape.value_heads) * sizes_.state; }
  // Stores the convolution's inputs of a block's last tokens with the block's state.
  void keep_inputs(const int64_t* tokens, const Layer& l, float* base) const {
    float* to = inputs_of(base);
    const int before = m_.shape.convolved - 1;
    for (int i = BLOCK - before; i < BLOCK; ++i, to += sizes_.channels)
      std::memcpy(to, token(tokens[i], l).inputs, sizes_.channels * sizeof(float));
  }
  const float* inputs_of(const float* base) const { return base + size_t(m_.shape.value_heads) * sizes_.state; }

 private:
  PastToken row(int row, const Layer& l) const {
    if (m_.shape.recurrent_kind == SHORT_CONVOLUTION) return {&m_.mixed[size_t(row) * sizes_.channels]};
    return {&m_.qkv[size_t(row) * sizes_.columns], &m_.mixed[size_t(row) * sizes_.channels + sizes_.keys],
            &m_.deltas[size_t(row) * sizes_.values], &m_.decays[size_t(row) * m_.shape.value_heads]};
  }

  const Model& m_;
  const Recurrence* p_;
  const RecurrentSizes sizes_;
};

}  // namespace specinfer
