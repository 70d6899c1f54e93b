// What the kernels share with Python: structures of calls, numbers of weights, kinds of storage. The other side is
// specinfer/model/native/bindings.py; LAYOUT lists all of it, and Python compares it with its own when it loads the library.
#pragma once
#include <cstddef>
#include <cstdint>

#include "simd/numbers.h"

namespace specinfer {

enum Activation { SILU, GELU, RELU, GELU_TANH };

// How a matrix is stored: dense, or in blocks of GGUF (products/formats.h), by GGUF's names. BLOCK_FLOAT is how bfloat16 is
// multiplied where the processor does not do it itself: see block_float.h; it is never asked for.
enum Storage { F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, IQ4_NL, IQ4_XS, BLOCK_FLOAT, MXFP4 };

// How keys and values are kept: attention/cache_kinds.h.
enum CacheKind { FLOAT32_CACHE, BFLOAT16_CACHE, BYTES_CACHE };

// Kinds of layers that keep a state instead of attending: recurrent/.
enum RecurrentKind { DELTA_NET, STATE_SPACE, SHORT_CONVOLUTION };

// Matrices of a layer, and of the model: HEAD, and FC where it has one (Shape::states). Those of the i-th expert are
// EXPERTS + 3 i on: gate, up, down. Of a recurrent layer CONVOLVED makes what is convolved (queries, keys, values),
// OUTPUT_GATES the gates of its output, STATE_GATES those of its states: beta, then alpha, of each head, or steps of time;
// of a short convolution factors of what is convolved. STATE_OUT: what the layer adds to the hidden states.
enum MatrixSlot {
  QUERY, KEY, VALUE, OUT, GATE, UP, DOWN, CONVOLVED, OUTPUT_GATES, STATE_GATES, STATE_OUT, HEAD, FC, ROUTER, EXPERTS = 1000
};

// Vectors of a layer, and of the model: FINAL_NORM, POSITIONS (learnt), FINAL_NORM_BIAS, HIDDEN_NORM (Shape::states).
// A norm that is not set is not there. Q_NORM, K_NORM: of each head, or of all heads of a row together, by their length.
// ATTENDED_NORM, MLP_NORM: of what attention and MLP add to the hidden states. SINKS: scores [heads] that take a part of
// attention and give nothing. EXPERT_...: of all experts of a layer, one after another.
// Of recurrent layers: CONVOLUTION [width, channels], its CONVOLUTION_BIAS, DECAY (negative) and TIME_BIAS [heads], SKIP [heads]
// of a state space, GATED_NORM [value dimension], of a state space of all heads, or none.
enum VectorSlot {
  INPUT_NORM, POST_NORM, Q_NORM, K_NORM, FINAL_NORM, POSITIONS, INPUT_NORM_BIAS, POST_NORM_BIAS, FINAL_NORM_BIAS,
  QKV_BIAS, OUT_BIAS, UP_BIAS, DOWN_BIAS, HIDDEN_NORM, HIDDEN_NORM_BIAS,
  ATTENDED_NORM, MLP_NORM,
  SINKS, ROUTER_BIAS, EXPERT_GATE_BIAS, EXPERT_UP_BIAS, EXPERT_DOWN_BIAS,
  CONVOLUTION, DECAY, TIME_BIAS, GATED_NORM, CONVOLUTION_BIAS, SKIP
};

struct Shape {
  int layers, hidden, inter, heads, kv_heads, dim, vocab, max_positions;
  int rotary;  // first dimensions of a head that are turned by its position; none if positions are learnt
  int tables;  // rotary tables, of which each layer has one or none (si_set_layer)
  int activation, gated;
  int parallel;  // attention and MLP read the same hidden states
  int states;    // hidden states of a target that its layer reads with embeddings (EAGLE); 0: it is a whole decoder
  int residual_normed;  // EAGLE: the layer adds to the normed hidden state
  float eps;
  float embedding_scale, score_scale, residual_scale;  // factors on embeddings, scores, what attention and MLP add
  float score_cap, logit_cap;                          // c tanh(x / c) of scores and logits; 0: none
  float bound;                                         // of the magnitude of queries, keys and values; 0: none
  int kv_layers;    // those that attend: a layer does, or is recurrent, or both, by its matrices
  int output_gate;  // each query head is followed by the gate of its output
  // Recurrent layers: their kind, heads of keys and of values, dimensions of those, inputs that a convolution sees.
  int recurrent_kind, key_heads, value_heads, key_dim, value_dim, convolved;
};

// Tokens and states of recurrent layers in a pass: see recurrent/past.h. Addresses are of float32 of all recurrent
// layers; a past token is an address, or -1 - its row in this pass. `past`: those before each row that it needs, of which the
// last `inside` are of its block.
struct Recurrence {
  const int64_t *own, *base, *tail, *past;
  const int32_t *past_start, *inside;          // CSR over rows; per row
  const int32_t *job_start, *job_row;          // CSR over sequences; the row before which a block's state is computed
  const int64_t *job_from, *job_to, *job_past;  // from a state and the BLOCK tokens after it
};

// The mixture of experts of a layer.
struct ExpertShape {
  int count, used, inter;  // experts, those of a row, numbers between the matrices of one
  int shared;              // the same of the layer's own MLP, which all rows read; 0: it has none
  int gated_shared;        // what the own MLP computes has a weight: the sigmoid of the router's last row
  int renormalised;        // weights of a row's experts: the softmax of their scores, not of all experts'
  float limit, alpha;      // bound of an expert's gate and of the magnitude of up, in (up + 1) gate sigmoid(alpha gate); 0: none
};

// One pass; every array is flat. See specinfer/model/batch.py for the meaning.
struct Pass {
  int tokens, sequences, logits;
  const int32_t *token_ids, *positions, *write_slots, *visible;
  const uint16_t* states;                      // EAGLE: of the target, [tokens, states, hidden] in bfloat16;
  const float* hidden;                         // or none, and these are its own, [tokens, hidden]
  const int32_t *extra_start, *extra;          // CSR over tokens: further positions each one sees
  const int32_t* row_start;                    // per sequence: first token (sequences + 1)
  const int32_t *block_start, *blocks;         // CSR over sequences: block tables
  const int32_t* logit_rows;
  void *keys, *values;                         // [layers, ...]
  int64_t cache_blocks;
  float* logits_out;
  int threads;
  int sparse;                                  // few of the logits will be read: they need not stay in the caches
  int features;                                // how many hidden states of each token are wanted, ascending:
  const int32_t* feature_layers;               // those after so many layers
  float* features_out;                         // [tokens, features, hidden]
  int first_layer, end_layer;                  // only these layers, the end excluded: with the embeddings before the
                                               // first one of all, and with norm and head after the last one
  const Recurrence* recurrence;                // of models with recurrent layers
};

// One request's tree. Its new context and its block table follow those of the request before.
struct GrowthJob {
  int32_t delta, held, shift, blocks;   // new context tokens, those in the cache, rotary shift, blocks
  int32_t nodes, depth, width;          // limits; width 0: none
  int32_t greedy, draws, top_k, last;   // draws: children are drawn, not points; last: absolute position after the root
  float temperature, top_p;
  float score_temperature;              // of the softmax that scores points
  double least_reach;                   // the tree continues below paths at least so probable
  uint64_t seed;                        // of the noise that points share with the target, or of the draws
};

inline constexpr int PLACES = 3;  // in the draw order, the last being all others

struct Growth {
  int jobs, most, beam, support, rivals, replace, levels, threads;  // most: largest `nodes`; replace: draws go back
  const GrowthJob* job;
  const int32_t *token_ids, *blocks, *vocabulary;  // vocabulary: target token of each draft token
  const int32_t* widths;                           // the expansion vector, `levels` long; 0: best-first
  const uint16_t* states;                          // EAGLE: as of `Pass`, of all `token_ids`
  void *keys, *values;
  int64_t cache_blocks;
  double least_level;        // sum of the frontiers' path probabilities below which point trees get no further level
  double agreement[PLACES];  // expected acceptance of draws over the norm of q: see specinfer/tree/draws.py
  // results: seconds of the levels after the first, and their number
  double level_seconds;
  int64_t levels_run;
  // nodes in the order of insertion, root first, [jobs][most + 1]
  int32_t *count, *tokens, *parents;
  float* scores;
  // proposals of sampled trees, [jobs][most]: parent, draws [most] and their ranks among all of the tree, q [support]
  int32_t *proposals, *proposal_parent, *draw_count, *draws, *ranks, *q_count, *q_ids;
  float* q;
};

struct LayoutEntry {
  const char* name;
  int64_t value;
};

#define SIZE(type) {"sizeof " #type, sizeof(type)}
#define AT(type, field) {#type "." #field, offsetof(type, field)}
#define VALUE(name) {#name, int64_t(name)}

// Sizes, offsets of all fields, and values.
inline constexpr LayoutEntry LAYOUT[] = {
    VALUE(LANES), VALUE(BLOCK), VALUE(PLACES),
    VALUE(Activation::SILU), VALUE(Activation::GELU), VALUE(Activation::RELU), VALUE(Activation::GELU_TANH),
    VALUE(CacheKind::FLOAT32_CACHE), VALUE(CacheKind::BFLOAT16_CACHE), VALUE(CacheKind::BYTES_CACHE),
    VALUE(Storage::F32), VALUE(Storage::F16), VALUE(Storage::BF16), VALUE(Storage::Q4_0), VALUE(Storage::Q4_1),
    VALUE(Storage::Q5_0), VALUE(Storage::Q5_1), VALUE(Storage::Q8_0), VALUE(Storage::Q2_K), VALUE(Storage::Q3_K),
    VALUE(Storage::Q4_K), VALUE(Storage::Q5_K), VALUE(Storage::Q6_K), VALUE(Storage::IQ4_NL), VALUE(Storage::IQ4_XS),
    VALUE(Storage::BLOCK_FLOAT), VALUE(Storage::MXFP4), VALUE(MatrixSlot::QUERY), VALUE(MatrixSlot::KEY), VALUE(MatrixSlot::VALUE),
    VALUE(MatrixSlot::OUT), VALUE(MatrixSlot::GATE), VALUE(MatrixSlot::UP), VALUE(MatrixSlot::DOWN),
    VALUE(MatrixSlot::CONVOLVED), VALUE(MatrixSlot::OUTPUT_GATES), VALUE(MatrixSlot::STATE_GATES), VALUE(MatrixSlot::STATE_OUT),
    VALUE(MatrixSlot::HEAD), VALUE(MatrixSlot::FC), VALUE(MatrixSlot::ROUTER), VALUE(MatrixSlot::EXPERTS),
    VALUE(VectorSlot::INPUT_NORM), VALUE(VectorSlot::POST_NORM), VALUE(VectorSlot::Q_NORM), VALUE(VectorSlot::K_NORM),
    VALUE(VectorSlot::FINAL_NORM), VALUE(VectorSlot::POSITIONS), VALUE(VectorSlot::INPUT_NORM_BIAS),
    VALUE(VectorSlot::POST_NORM_BIAS), VALUE(VectorSlot::FINAL_NORM_BIAS), VALUE(VectorSlot::QKV_BIAS),
    VALUE(VectorSlot::OUT_BIAS), VALUE(VectorSlot::UP_BIAS), VALUE(VectorSlot::DOWN_BIAS),
    VALUE(VectorSlot::HIDDEN_NORM), VALUE(VectorSlot::HIDDEN_NORM_BIAS), VALUE(VectorSlot::ATTENDED_NORM),
    VALUE(VectorSlot::MLP_NORM), VALUE(VectorSlot::SINKS), VALUE(VectorSlot::ROUTER_BIAS),
    VALUE(VectorSlot::EXPERT_GATE_BIAS), VALUE(VectorSlot::EXPERT_UP_BIAS), VALUE(VectorSlot::EXPERT_DOWN_BIAS),
    VALUE(VectorSlot::CONVOLUTION), VALUE(VectorSlot::DECAY), VALUE(VectorSlot::TIME_BIAS),
    VALUE(VectorSlot::GATED_NORM), VALUE(VectorSlot::CONVOLUTION_BIAS), VALUE(VectorSlot::SKIP),
    VALUE(RecurrentKind::DELTA_NET), VALUE(RecurrentKind::STATE_SPACE), VALUE(RecurrentKind::SHORT_CONVOLUTION),
    SIZE(Shape), AT(Shape, layers), AT(Shape, hidden), AT(Shape, inter), AT(Shape, heads), AT(Shape, kv_heads),
    AT(Shape, dim), AT(Shape, vocab), AT(Shape, max_positions), AT(Shape, rotary), AT(Shape, tables), AT(Shape, activation), AT(Shape, gated),
    AT(Shape, parallel), AT(Shape, states), AT(Shape, residual_normed), AT(Shape, eps),
    AT(Shape, embedding_scale), AT(Shape, score_scale), AT(Shape, residual_scale), AT(Shape, score_cap), AT(Shape, logit_cap), AT(Shape, bound),
    AT(Shape, kv_layers), AT(Shape, output_gate), AT(Shape, recurrent_kind), AT(Shape, key_heads), AT(Shape, value_heads), AT(Shape, key_dim),
    AT(Shape, value_dim), AT(Shape, convolved),
    SIZE(ExpertShape), AT(ExpertShape, count), AT(ExpertShape, used), AT(ExpertShape, inter), AT(ExpertShape, shared),
    AT(ExpertShape, gated_shared), AT(ExpertShape, renormalised), AT(ExpertShape, limit), AT(ExpertShape, alpha),
    SIZE(Recurrence), AT(Recurrence, own), AT(Recurrence, base), AT(Recurrence, tail), AT(Recurrence, past),
    AT(Recurrence, past_start), AT(Recurrence, inside), AT(Recurrence, job_start), AT(Recurrence, job_row),
    AT(Recurrence, job_from), AT(Recurrence, job_to), AT(Recurrence, job_past),
    SIZE(Pass), AT(Pass, tokens), AT(Pass, sequences), AT(Pass, logits), AT(Pass, token_ids), AT(Pass, positions),
    AT(Pass, write_slots), AT(Pass, visible), AT(Pass, states), AT(Pass, hidden), AT(Pass, extra_start), AT(Pass, extra), AT(Pass, row_start),
    AT(Pass, block_start), AT(Pass, blocks), AT(Pass, logit_rows), AT(Pass, keys), AT(Pass, values), AT(Pass, cache_blocks),
    AT(Pass, logits_out), AT(Pass, threads), AT(Pass, sparse), AT(Pass, features), AT(Pass, feature_layers),
    AT(Pass, features_out), AT(Pass, first_layer), AT(Pass, end_layer), AT(Pass, recurrence),
    SIZE(GrowthJob), AT(GrowthJob, delta), AT(GrowthJob, held), AT(GrowthJob, shift), AT(GrowthJob, blocks),
    AT(GrowthJob, nodes), AT(GrowthJob, depth), AT(GrowthJob, width), AT(GrowthJob, greedy), AT(GrowthJob, draws),
    AT(GrowthJob, top_k), AT(GrowthJob, last), AT(GrowthJob, temperature), AT(GrowthJob, top_p),
    AT(GrowthJob, score_temperature), AT(GrowthJob, least_reach), AT(GrowthJob, seed),
    SIZE(Growth), AT(Growth, jobs), AT(Growth, most), AT(Growth, beam), AT(Growth, support), AT(Growth, rivals),
    AT(Growth, replace), AT(Growth, levels), AT(Growth, threads), AT(Growth, job), AT(Growth, token_ids), AT(Growth, blocks),
    AT(Growth, vocabulary), AT(Growth, widths), AT(Growth, states), AT(Growth, keys), AT(Growth, values), AT(Growth, cache_blocks),
    AT(Growth, least_level), AT(Growth, agreement), AT(Growth, level_seconds), AT(Growth, levels_run), AT(Growth, count), AT(Growth, tokens), AT(Growth, parents), AT(Growth, scores),
    AT(Growth, proposals), AT(Growth, proposal_parent), AT(Growth, draw_count), AT(Growth, draws), AT(Growth, ranks),
    AT(Growth, q_count), AT(Growth, q_ids), AT(Growth, q)};

#undef SIZE
#undef AT
#undef VALUE

}  // namespace specinfer
