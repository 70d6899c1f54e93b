// Interface of the kernels and Python: structures of calls, numbers of weights, kinds of storage. The Python side is
// specinfer/model/native/bindings.py, which compares LAYOUT with its own layout when it loads the library.
#pragma once
#include <cstddef>
#include <cstdint>

#include "simd/numbers.h"

namespace specinfer {

enum Activation { SILU, GELU, RELU, GELU_TANH };

// Storage of matrices: dense, or blocks of GGUF (products/formats.h), by GGUF's names. BLOCK_FLOAT is bfloat16 for processors
// without bfloat16 products (block_float.h); callers never request it.
enum Storage { F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, IQ4_NL, IQ4_XS, BLOCK_FLOAT, MXFP4 };

// Storage of keys and values: attention/cache_kinds.h.
enum CacheKind { FLOAT32_CACHE, BFLOAT16_CACHE, BYTES_CACHE };

// Kinds of recurrent layers: recurrent/.
enum RecurrentKind { DELTA_NET, STATE_SPACE, SHORT_CONVOLUTION };

// Matrices of a layer; HEAD, and FC if Shape::states, are the model's. Expert i has EXPERTS + 3 i (gate), + 1 (up), + 2 (down).
// Recurrent layers: CONVOLVED projects the convolution's inputs (queries, keys, values; of a short convolution its inputs),
// OUTPUT_GATES the output's gates, STATE_GATES beta, then alpha, per head (state space: time steps; short convolution: factors
// of the convolution's inputs). STATE_OUT projects the outputs to what is added to the hidden states.
enum MatrixSlot {
  QUERY, KEY, VALUE, OUT, GATE, UP, DOWN, CONVOLVED, OUTPUT_GATES, STATE_GATES, STATE_OUT, HEAD, FC, ROUTER, EXPERTS = 1000
};

// Vectors of a layer; FINAL_NORM, FINAL_NORM_BIAS, POSITIONS (learnt) and HIDDEN_NORM (Shape::states) are the model's.
// A norm that is not set is absent. Q_NORM, K_NORM: per head, or over all heads of a row, depending on their length.
// ATTENDED_NORM, MLP_NORM: norms of the outputs of attention and MLP. SINKS [heads]: extra scores in each softmax, without
// a value. EXPERT_...: of all experts of a layer, concatenated.
// Recurrent layers: CONVOLUTION [width, channels], CONVOLUTION_BIAS, DECAY (negative), TIME_BIAS [heads]; state space: SKIP
// [heads]; GATED_NORM [value dimension], in a state space over all heads; absent if not set.
enum VectorSlot {
  INPUT_NORM, POST_NORM, Q_NORM, K_NORM, FINAL_NORM, POSITIONS, INPUT_NORM_BIAS, POST_NORM_BIAS, FINAL_NORM_BIAS,
  QKV_BIAS, OUT_BIAS, UP_BIAS, DOWN_BIAS, HIDDEN_NORM, HIDDEN_NORM_BIAS,
  ATTENDED_NORM, MLP_NORM,
  SINKS, ROUTER_BIAS, EXPERT_GATE_BIAS, EXPERT_UP_BIAS, EXPERT_DOWN_BIAS,
  CONVOLUTION, DECAY, TIME_BIAS, GATED_NORM, CONVOLUTION_BIAS, SKIP
};

struct Shape {
  int layers, hidden, inter, heads, kv_heads, dim, vocab, max_positions;
  int rotary;  // rotated dimensions, the first of a head; 0 with learnt positions
  int tables;  // number of rotary tables; a layer uses one or none (si_set_layer)
  int activation, gated;
  int parallel;  // attention and MLP read the same hidden states
  int states;    // EAGLE: number of the target's hidden states per token; 0: a whole decoder
  int residual_normed;  // EAGLE: the layer adds to the normed hidden state
  float eps;
  float embedding_scale, score_scale, residual_scale;  // factors on embeddings, scores, outputs of attention and MLP
  float score_cap, logit_cap;                          // c tanh(x / c) of scores and logits; 0: none
  float bound;                                         // maximum magnitude of queries, keys and values; 0: none
  int kv_layers;    // number of layers with attention; a layer's matrices show whether it has attention, a state or both
  int output_gate;  // rows of a query head and of its output's gate alternate
  // Recurrent layers: kind, number of key and value heads, their sizes, number of tokens in a convolution.
  int recurrent_kind, key_heads, value_heads, key_dim, value_dim, convolved;
};

// Tokens and states of recurrent layers in a pass: see recurrent/past.h. Addresses are of float32 numbers of all recurrent
// layers; a past token is an address, or -1 - its row in this pass. `past` lists the tokens that a row reads; the last
// `inside` of them are in the row's block.
struct Recurrence {
  const int64_t *own, *base, *tail, *past;
  const int32_t *past_start, *inside;          // CSR over rows; per row
  const int32_t *job_start, *job_row;          // CSR over sequences; a block's end state is computed before this row
  const int64_t *job_from, *job_to, *job_past;  // from a state and the BLOCK tokens after it, to a state
};

// The mixture of experts of a layer.
struct ExpertShape {
  int count, used, inter;  // number of experts; experts per row; inner size of an expert
  int shared;              // inner size of the shared expert (the layer's own MLP); 0: none
  int gated_shared;        // the shared expert's weight is the sigmoid of the router's last row
  int renormalised;        // a row's weights are the softmax over its chosen experts, not all
  float limit, alpha;      // maximum of gate and |up| in (up + 1) gate sigmoid(alpha gate); 0: none
};

// One pass; every array is flat. See specinfer/model/batch.py for the meaning.
struct Pass {
  int tokens, sequences, logits;
  const int32_t *token_ids, *positions, *write_slots, *visible;
  const uint16_t* states;                      // EAGLE: hidden states of the target, [tokens, states, hidden] in bfloat16;
  const float* hidden;                         // or, if null, of the layer itself, [tokens, hidden]
  const int32_t *extra_start, *extra;          // CSR over tokens: visible positions after `visible`
  const int32_t* row_start;                    // [sequences + 1] first token of each sequence
  const int32_t *block_start, *blocks;         // CSR over sequences: block tables
  const int32_t* logit_rows;
  void *keys, *values;                         // [layers, ...]
  int64_t cache_blocks;
  float* logits_out;
  int threads;
  int sparse;                                  // few logits will be read: write them past the caches
  int features;                                // number of hidden states to return per token,
  const int32_t* feature_layers;               // after these numbers of layers, ascending
  float* features_out;                         // [tokens, features, hidden]
  int first_layer, end_layer;                  // run layers [first, end); embeddings before layer 0,
                                               // norm and head after the last layer
  const Recurrence* recurrence;                // null without recurrent layers
};

// One request's tree. Deltas and block tables of all requests are concatenated.
struct GrowthJob {
  int32_t delta, held, shift, blocks;   // number of new and of cached context tokens; rotary shift; number of blocks
  int32_t nodes, depth, width;          // maximum nodes, depth and children; width 0: unlimited
  int32_t greedy, draws, top_k, last;   // draws: children are drawn; last: absolute position after the root
  float temperature, top_p;
  float score_temperature;              // temperature of the softmax that scores points
  double least_reach;                   // minimum path probability of expanded nodes
  uint64_t seed;                        // seed of the noise shared with the target (points), or of the draws
};

inline constexpr int PLACES = 3;  // places with their own `agreement`; the last is all others

struct Growth {
  int jobs, most, beam, support, rivals, replace, levels, threads;  // most: maximum `nodes`; replace: draw with replacement
  const GrowthJob* job;
  const int32_t *token_ids, *blocks, *vocabulary;  // vocabulary: target token of each draft token
  const int32_t* widths;                           // the expansion vector, `levels` long; 0: best-first
  const uint16_t* states;                          // EAGLE: as `Pass::states`, for all `token_ids`
  void *keys, *values;
  int64_t cache_blocks;
  double least_level;        // minimum sum of the frontiers' path probabilities for another level of points
  double agreement[PLACES];  // expected acceptance of draws per norm of q: specinfer/tree/draws.py
  // results: seconds of the levels after the first; their number
  double level_seconds;
  int64_t levels_run;
  // nodes in insertion order, root first, [jobs][most + 1]
  int32_t *count, *tokens, *parents;
  float* scores;
  // proposals of trees with draws, [jobs][most]: parent, draws [most] with ranks in the whole tree, q [support]
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

// Sizes of structures, offsets of all fields, and values.
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
