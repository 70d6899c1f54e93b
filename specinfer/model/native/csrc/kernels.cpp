// A decoder on a CPU with AVX-512 or AVX2: one call per pass (forward.h), one per draft (growth.h).
//
// A pass over SmolLM2-135M reads 269 MB of weights, which takes 5.5 ms; about thirty small torch operations per layer took
// three times as long. Here one parallel region runs all layers; spin barriers separate its phases, so a phase costs only
// its arithmetic.
//
// Invariant: a token's result does not depend on other tokens of the pass. Every output number is one chain of multiply-adds
// over k (or over positions, or over blocks of k: block_float.h, blocks.h) in a fixed order, for any number of rows. A tree
// node visits its positions in the order that they will have once committed. So trees, chains and plain decoding agree
// bit for bit, also in bfloat16.
//
// Layouts (S = elements per 32-bit step: 2 for bfloat16, 1 for float32)
//   weights   [N/tile][K/S][tile/16][16][S]   dense; a tile has 32 columns, or 16 * WIDE; without bfloat16 products as
//                                             integers (block_float.h); GGUF: blocks.h
//   keys      [block][KV heads][D/S][16][S]   lane = position within its block of 16
//   values    [block][KV heads][16/S][D][S]   S positions next to each other
//   bytes: S is 4, and a block's 16 scales precede its lines (attention/cache_kinds.h)

#ifdef __AVX512F__
// Integer sums must stay in registers. With this pass g++ 12 keeps two copies of each sum and runs out of registers. With
// AVX2's sixteen registers the pass helps.
#pragma GCC optimize("no-tree-coalesce-vars")
#endif

#include <iterator>

#include "bindings.h"
#include "cache.h"
#include "forward.h"
#include "drafting/growth.h"
#include "sampling/gumbel.h"
#include "sampling/softmax.h"

using namespace specinfer;

extern "C" {

// Returns the layout that both sides must agree on (bindings.h).
const LayoutEntry* si_layout(int* count) {
  *count = int(std::size(LAYOUT));
  return LAYOUT;
}

// cache: a CacheKind
void* si_model_new(const Shape* shape, int cache, const float* cos, const float* sin) {
  Model* m = new Model;
  m->shape = *shape;
  m->cache = CacheKind(cache);
  m->layers = std::vector<Layer>(shape->layers);
  const size_t n = size_t(shape->tables) * shape->max_positions * shape->rotary / 2;
  m->cos.assign(cos, cos + n);
  m->sin.assign(sin, sin + n);
  return m;
}

void si_model_free(void* model) { delete static_cast<Model*>(model); }

// which: a MatrixSlot; storage: any Storage but BLOCK_FLOAT; rows: [N, K] numbers, or [N] rows of blocks, contiguous
void si_set_matrix(void* model, int layer, int which, int storage, const void* rows) {
  set_matrix(*static_cast<Model*>(model), layer, which, Storage(storage), rows);
}

// Returns the bytes of a packed matrix; `at` gets its address.
int64_t si_packed(void* model, int layer, int which, const void** at) {
  Model& m = *static_cast<Model*>(model);
  const Matrix& matrix = m.layers[layer].matrix(which);
  *at = matrix.data;
  return matrix.bytes();
}

// From now on a layer's matrix is at this address, a multiple of 64; frees our copy.
void si_place(void* model, int layer, int which, const void* at) {
  static_cast<Model*>(model)->layers[layer].matrix(which).place(static_cast<const char*>(at));
}

// Sets a factor on the output of a layer's matrix: see Matrix.
void si_set_factor(void* model, int layer, int which, float factor) {
  static_cast<Model*>(model)->layers[layer].matrix(which).factor = factor;
}

// Sets a layer's window, rotary table and place: see Layer.
void si_set_layer(void* model, int layer, int window, int table, int place) {
  Layer& l = static_cast<Model*>(model)->layers[layer];
  l.window = window, l.table = table, l.place = place;
}

// Sets the number and sizes of a layer's experts; call it before their matrices are set.
void si_set_experts(void* model, int layer, const ExpertShape* shape) {
  set_experts(*static_cast<Model*>(model), layer, *shape);
}

// which: a VectorSlot
void si_set_vector(void* model, int layer, int which, const float* data, int n) {
  Model& m = *static_cast<Model*>(model);
  Layer& l = m.layers[layer];
  std::vector<float>* targets[] = {
      // in the order of VectorSlot
      &l.input_norm.weight, &l.post_norm.weight, &l.q_norm, &l.k_norm, &m.final_norm.weight, &m.positions,
      &l.input_norm.bias, &l.post_norm.bias, &m.final_norm.bias, &l.qkv_bias, &l.out.bias, &l.up.bias, &l.down.bias,
      &m.hidden_norm.weight, &m.hidden_norm.bias, &l.attended_norm.weight, &l.mlp_norm.weight, &l.sinks,
      &l.experts.router.bias, &l.experts.gate_bias, &l.experts.up_bias, &l.experts.down_bias,
      &l.convolution, &l.decay, &l.time_bias, &l.gated_norm, &l.convolution_bias, &l.skip};
  targets[which]->assign(data, data + n);
}

// Requantises rows of any Storage but BLOCK_FLOAT to Q4_0; k: numbers of a row, a multiple of 32.
void si_requantise(int storage, const void* rows, int n, int k, void* to) {
  requantise(Storage(storage), rows, n, k, static_cast<uint8_t*>(to));
}

// Sets the embeddings, [vocabulary, hidden] as in `si_set_matrix`; they stay in the caller's memory.
void si_set_embedding(void* model, int storage, const void* table) {
  Model& m = *static_cast<Model*>(model);
  m.embedding = table, m.embedding_storage = Storage(storage);
}

// Returns the sizes in float32 numbers of a state and of a token, in one recurrent layer.
void si_recurrent_sizes(void* model, int32_t* base, int32_t* token) {
  const RecurrentSizes sizes(static_cast<Model*>(model)->shape);
  *base = sizes.base, *token = sizes.token;
}

void si_forward(void* model, const Pass* pass) {
  Model& m = *static_cast<Model*>(model);
  with_cache(m.cache, [&](auto cache) { forward<decltype(cache)>(m, *pass); });
}

// Grows token trees with a draft model: see growth.h.
void si_grow(void* model, Growth* growth) {
  Model& m = *static_cast<Model*>(model);
  with_cache(m.cache, [&](auto cache) { grow<decltype(cache)>(m, *growth); });
}

// p = softmax(logits / temperature), [n] float64.
void si_softmax(const float* logits, int n, float temperature, double* p) { softmax(logits, n, temperature, p); }

// Returns the token that noise of this key chooses, of n unnormalised probabilities.
int si_choose(const double* p, int n, uint64_t key) { return choose(p, n, key); }

// Returns the token that noise chooses from softmax(logits / temperature).
int si_choose_by_logits(const float* logits, int n, float temperature, uint64_t key) {
  return choose_by_logits(logits, n, temperature, key);
}

// Returns the bytes of a block of keys or values, of one layer and KV head.
int64_t si_block_bytes(void* model) {
  Model& m = *static_cast<Model*>(model);
  return with_cache(m.cache, [&](auto cache) { return int64_t(block_bytes<decltype(cache)>(m.shape.dim)); });
}

// Moves cache entries; reads all sources before it writes any target.
void si_move(void* model, void* keys, void* values, int64_t blocks, int count, const int32_t* source,
             const int32_t* target) {
  Model& m = *static_cast<Model*>(model);
  with_cache(m.cache, [&](auto cache) { move_entries<decltype(cache)>(m.shape, keys, values, blocks, count, source, target); });
}

// Rotates keys by delta positions; cos, sin: [rotary / 2] of delta times the rotary frequencies.
void si_rotate(void* model, void* keys, int64_t blocks, int count, const int32_t* slots, const float* cos,
               const float* sin) {
  Model& m = *static_cast<Model*>(model);
  with_cache(m.cache, [&](auto cache) { rotate_keys<decltype(cache)>(m.shape, keys, blocks, count, slots, cos, sin); });
}

}  // extern "C"
