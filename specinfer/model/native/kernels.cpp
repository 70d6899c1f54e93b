// The decoder's forward pass on a CPU with AVX-512, as one call per pass.
//
// Why: a pass over SmolLM2-135M reads 269 MB of weights, which takes 5.5 ms; about thirty small torch
// operations per layer took three times as long. Here one parallel region runs all layers; its phases
// are separated by spin barriers, so the cost of a phase is its arithmetic.
//
// Invariant: a token's result does not depend on what else is in the pass. Every output element is one
// chain of multiply-adds over k (or over positions) in a fixed order, whatever the number of rows, and a
// tree node visits its positions in the order in which they will lie once they are committed. So a tree,
// a chain and plain decoding agree bit for bit, in bfloat16 too.
//
// Layouts (S = elements per 32-bit step: 2 for bfloat16, 1 for float32)
//   weights   [N/tile][K/S][tile/16][16][S]   a tile is 32 columns; gate and up: 32 + 32 side by side
//   keys      [block][KV heads][D/S][16][S]   lane = position within its block of 16
//   values    [block][KV heads][16/S][D][S]   pairs of positions side by side
#include <immintrin.h>
#include <omp.h>
#include <sched.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

namespace {

constexpr int LANES = 16;
constexpr int BLOCK = 16;  // tokens per cache block = lanes of a vector
using Unit = uint32_t;     // one step of an activation: two bfloat16 or one float32

// ---------------------------------------------------------------------------------- number kinds

inline uint16_t to_bf16(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  return uint16_t((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
}
inline float from_bf16(uint16_t x) {
  uint32_t bits = uint32_t(x) << 16;
  float y;
  std::memcpy(&y, &bits, 4);
  return y;
}

#ifdef __AVX512BF16__
struct Bf16 {
  using T = uint16_t;
  static constexpr int S = 2;
  static __m512 madd(__m512 acc, __m512i w, Unit a) {
    return _mm512_dpbf16_ps(acc, (__m512bh)_mm512_set1_epi32(int(a)), (__m512bh)w);
  }
  // Element `parity` of each pair in `from`, put at place `to` of a pair of zeros.
  static __m512i pick(__m512i from, int parity, int to) {
    const __m512i x = parity ? _mm512_srli_epi32(from, 16) : _mm512_and_si512(from, _mm512_set1_epi32(0xFFFF));
    return to ? _mm512_slli_epi32(x, 16) : x;
  }
  static void store(T* p, __m512 x) { _mm256_storeu_si256((__m256i*)p, (__m256i)_mm512_cvtneps_pbh(x)); }
  static T from_float(float x) { return to_bf16(x); }
  static float to_float(T x) { return from_bf16(x); }
};
#endif

struct F32 {
  using T = float;
  static constexpr int S = 1;
  static __m512 madd(__m512 acc, __m512i w, Unit a) {
    return _mm512_fmadd_ps(_mm512_castsi512_ps(_mm512_set1_epi32(int(a))), _mm512_castsi512_ps(w), acc);
  }
  static __m512i pick(__m512i from, int, int) { return from; }
  static void store(T* p, __m512 x) { _mm512_storeu_ps(p, x); }
  static T from_float(float x) { return x; }
  static float to_float(T x) { return x; }
};

// exp of 16 floats: 2^n * p(f) with a degree-6 polynomial; relative error below 2e-7.
inline __m512 vexp(__m512 x) {
  x = _mm512_max_ps(x, _mm512_set1_ps(-87.0f));
  x = _mm512_min_ps(x, _mm512_set1_ps(88.0f));
  const __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(x, _mm512_set1_ps(1.44269504f)), 0);
  __m512 f = _mm512_fnmadd_ps(n, _mm512_set1_ps(0.693359375f), x);
  f = _mm512_fnmadd_ps(n, _mm512_set1_ps(-2.12194440e-4f), f);
  __m512 p = _mm512_set1_ps(1.3888889e-3f);
  for (float c : {8.3333333e-3f, 4.1666667e-2f, 0.16666667f, 0.5f, 1.0f, 1.0f})
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(c));
  return _mm512_scalef_ps(p, n);
}

// ---------------------------------------------------------------------------------- threads

class Barrier {
 public:
  explicit Barrier(int threads) : threads_(threads) {}
  void wait() {
    if (threads_ == 1) return;
    const int phase = phase_.load(std::memory_order_relaxed);
    if (count_.fetch_add(1, std::memory_order_acq_rel) + 1 == threads_) {
      count_.store(0, std::memory_order_relaxed);
      phase_.store(phase + 1, std::memory_order_release);
      return;
    }
    for (int spins = 0; phase_.load(std::memory_order_acquire) == phase; ++spins) {
      if (spins < 8192) _mm_pause();
      else sched_yield();  // somebody else needs the core
    }
  }

 private:
  const int threads_;
  std::atomic<int> count_{0}, phase_{0};
};

struct Range {
  int begin, end;
};
inline Range share(int items, int thread, int threads) {
  return {int(int64_t(items) * thread / threads), int(int64_t(items) * (thread + 1) / threads)};
}

// ---------------------------------------------------------------------------------- matrices

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
// Q4_1, a minimum). They are expanded tile by tile to the very bfloat16 numbers that dequantising the
// whole file gives, so results do not change by a bit, only the bytes read do.
enum Storage { DENSE = 0, Q4_1 = 1, Q8_0 = 2 };
constexpr int GROUP = 32;

struct Matrix {
  int n = 0, k = 0, vectors = 2;  // columns, depth, vectors of 16 columns per tile
  Storage storage = DENSE;
  Arena* packed = nullptr;
  std::vector<float> bias;
  int tiles() const { return (n + vectors * LANES - 1) / (vectors * LANES); }
  // Bytes of 32 rows of one vector of columns: per column one scale (and minimum) as float16, then, per
  // step of two rows, 16 bytes of nibble pairs or 32 bytes of byte pairs.
  size_t group_bytes() const { return storage == Q4_1 ? 64 + 256 : 32 + 512; }
  size_t tile_bytes(int s) const {
    return storage == DENSE ? size_t(k) / s * vectors * 64 : size_t(k / GROUP) * vectors * group_bytes();
  }
  ~Matrix() { delete packed; }
};

// Packs rows of a [N, K] matrix; `row_of` maps a packed column to a row of the source, -1 to zeros.
template <class Kind, class RowOf>
void pack(Matrix& m, const typename Kind::T* source, int columns, int k, int vectors, RowOf row_of) {
  using T = typename Kind::T;
  m.n = columns, m.k = k, m.vectors = vectors;
  const int steps = k / Kind::S, width = vectors * LANES;
  m.packed = new Arena(size_t(m.tiles()) * steps * width * sizeof(Unit));
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

// Blocks of a GGUF tensor [N][K / 32], 20 bytes each (scale, minimum, 16 bytes: low nibbles are elements
// 0-15, high ones 16-31) or 34 (scale, 32 signed bytes), into tiles. `row_of` as for `pack`.
template <class RowOf>
void pack_quantised(Matrix& m, const uint8_t* source, Storage storage, int columns, int k, int vectors, RowOf row_of) {
  m.n = columns, m.k = k, m.vectors = vectors, m.storage = storage;
  const int groups = k / GROUP;
  const size_t block = storage == Q4_1 ? 20 : 34, head = storage == Q4_1 ? 4 : 2;
  m.packed = new Arena(m.tiles() * m.tile_bytes(2));
  std::memset(m.packed->data(), 0, m.tiles() * m.tile_bytes(2));
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
}

#ifdef __AVX512BF16__
// Twice the float16 numbers at `p`: lanes (0 0 1 1 ... 7 7) and (8 8 ... 15 15).
inline void load_doubled(const uint8_t* p, __m512* low, __m512* high) {
  const __m512 x = _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)p));
  const __m512i first = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
  *low = _mm512_permutexvar_ps(first, x);
  *high = _mm512_permutexvar_ps(_mm512_add_epi32(first, _mm512_set1_epi32(8)), x);
}

// Expands one tile to bfloat16 in the layout of dense tiles. Multiplication and addition round
// separately, as dequantising does.
void expand(const Matrix& m, int tile, char* out, const char* ahead) {
  const uint8_t* in = reinterpret_cast<const uint8_t*>(m.packed->data()) + tile * m.tile_bytes(2);
  const size_t bytes = m.group_bytes();
  for (int g = 0; g < m.k / GROUP; ++g)
    for (int v = 0; v < m.vectors; ++v, in += bytes, ahead += bytes) {
      for (size_t i = 0; i < bytes; i += 64) _mm_prefetch(ahead + i, _MM_HINT_T0);
      __m512 scale[2], least[2];
      load_doubled(in, &scale[0], &scale[1]);
      if (m.storage == Q4_1) load_doubled(in + 32, &least[0], &least[1]);
      for (int step = 0; step < GROUP / 2; ++step) {
        __m512 x[2];
        if (m.storage == Q4_1) {
          const __m128i pairs = _mm_loadu_si128((const __m128i*)(in + 64 + step * 16));
          const __m128i mask = _mm_set1_epi8(15);
          const __m128i even = _mm_and_si128(pairs, mask), odd = _mm_and_si128(_mm_srli_epi16(pairs, 4), mask);
          x[0] = _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_unpacklo_epi8(even, odd)));
          x[1] = _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_unpackhi_epi8(even, odd)));
          for (int h = 0; h < 2; ++h) x[h] = _mm512_add_ps(_mm512_mul_ps(x[h], scale[h]), least[h]);
        } else {
          const __m128i* pairs = (const __m128i*)(in + 32 + step * 32);
          for (int h = 0; h < 2; ++h)
            x[h] = _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(pairs + h))), scale[h]);
        }
        char* to = out + (size_t(g * (GROUP / 2) + step) * m.vectors + v) * 64;
        _mm512_store_si512(to, (__m512i)_mm512_cvtne2ps_pbh(x[1], x[0]));
      }
    }
}
#endif

// What to prefetch while a tile is multiplied: `lines` cache lines per step from `at`, then `advance` bytes.
struct Ahead {
  const char* at;
  int lines, advance;
};

// MR rows times one tile: out[r][c] = sum over k in order.
template <class Kind, int MR, int NV>
inline void micro(const Unit* a, size_t stride, const char* w, int steps, float* out, Ahead ahead) {
  __m512 acc[MR][NV];
  for (int r = 0; r < MR; ++r)
    for (int v = 0; v < NV; ++v) acc[r][v] = _mm512_setzero_ps();
  for (int step = 0; step < steps; ++step, w += NV * 64, ahead.at += ahead.advance) {
    __m512i b[NV];
    for (int v = 0; v < NV; ++v) b[v] = _mm512_load_si512(w + v * 64);
    for (int i = 0; i < ahead.lines; ++i) _mm_prefetch(ahead.at + i * 64, _MM_HINT_T0);
    for (int r = 0; r < MR; ++r)
      for (int v = 0; v < NV; ++v) acc[r][v] = Kind::madd(acc[r][v], b[v], a[r * stride + step]);
  }
  for (int r = 0; r < MR; ++r)
    for (int v = 0; v < NV; ++v) _mm512_store_ps(out + (r * NV + v) * LANES, acc[r][v]);
}

template <class Kind, int NV, int MR>
inline void micro_rows(int rows, const Unit* a, size_t stride, const char* w, int steps, float* out, Ahead ahead) {
  if (rows == MR) return micro<Kind, MR, NV>(a, stride, w, steps, out, ahead);
  if constexpr (MR > 1) micro_rows<Kind, NV, MR - 1>(rows, a, stride, w, steps, out, ahead);
}

// Columns of `range` tiles for all rows; `finish(row, first column, values)` gets each row of a tile.
//
// One piece of rows: the tile streams from memory, prefetched 4 kB ahead. Several pieces: the first finds
// the tile in the cache because the pieces of the tile before fetched it, each its part, while they
// computed. So memory and arithmetic overlap, and sixteen rows cost little more than one.
template <class Kind, int NV, class Finish>
void multiply(const Matrix& m, const Unit* a, int rows, Range range, [[maybe_unused]] char* scratch, Finish finish) {
  constexpr int MR = NV == 4 ? 6 : 12;
  const int steps = m.k / Kind::S, pieces = (rows + MR - 1) / MR;
  const size_t bytes = size_t(steps) * NV * 64;
  alignas(64) float out[MR * NV * LANES];
  for (int tile = range.begin; tile < range.end; ++tile) {
    const char* w = m.packed->data() + tile * bytes;
#ifdef __AVX512BF16__
    if (m.storage != DENSE) {
      expand(m, tile, scratch, m.packed->data() + (tile + 1) * m.tile_bytes(Kind::S));
      w = scratch;
    }
#endif
    for (int piece = 0; piece < pieces; ++piece) {
      const Range r = share(rows, piece, pieces);
      const Ahead ahead = m.storage != DENSE ? Ahead{w, 0, 0} : pieces == 1 ? Ahead{w + 4096, NV, NV * 64}
                                      : Ahead{w + bytes + bytes * piece / pieces, (NV + pieces - 1) / pieces, NV * 64 / pieces};
      micro_rows<Kind, NV, MR>(r.end - r.begin, a + size_t(r.begin) * steps, steps, w, steps, out, ahead);
      for (int i = r.begin; i < r.end; ++i)
        finish(i, tile * NV * LANES, out + (i - r.begin) * NV * LANES);
    }
  }
}

// ---------------------------------------------------------------------------------- model

struct Layer {
  std::vector<float> input_norm, post_norm, q_norm, k_norm;
  Matrix qkv, out, gate_up, down;
};

struct Shape {
  int layers, hidden, inter, heads, kv_heads, dim, vocab, max_positions;
  float eps;
};

struct Model {
  Shape shape;
  bool bf16;
  std::vector<Layer> layers;
  std::vector<float> final_norm;
  Matrix head;
  const void* embedding = nullptr;
  std::vector<float> cos, sin;  // [positions, D/2]
  bool quantised = false;
  std::vector<std::unique_ptr<Arena>> scratch;  // per thread, for one expanded tile
  // buffers of the largest pass so far
  std::vector<float> x, qkv;
  std::vector<Unit> normed, query, attended, inner;
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
};

template <class Kind>
void rms_norm(const float* x, const float* weight, int n, float eps, typename Kind::T* out) {
  __m512 sum = _mm512_setzero_ps();
  int i = 0;
  for (; i + LANES <= n; i += LANES) {
    const __m512 v = _mm512_loadu_ps(x + i);
    sum = _mm512_fmadd_ps(v, v, sum);
  }
  float total = _mm512_reduce_add_ps(sum);
  for (; i < n; ++i) total += x[i] * x[i];
  const float scale = 1.0f / std::sqrt(total / n + eps);
  for (i = 0; i + LANES <= n; i += LANES) {
    const __m512 v = _mm512_mul_ps(_mm512_loadu_ps(x + i), _mm512_set1_ps(scale));
    Kind::store(out + i, _mm512_mul_ps(v, _mm512_loadu_ps(weight + i)));
  }
  for (; i < n; ++i) out[i] = Kind::from_float(x[i] * scale * weight[i]);
}

// The same on one head, in place and in float32 (Qwen3's query and key norm).
void norm_head(float* x, const std::vector<float>& weight, float eps) {
  if (weight.empty()) return;
  float total = 0;
  for (size_t i = 0; i < weight.size(); ++i) total += x[i] * x[i];
  const float scale = 1.0f / std::sqrt(total / weight.size() + eps);
  for (size_t i = 0; i < weight.size(); ++i) x[i] *= scale * weight[i];
}

void rotate(float* x, const float* cos, const float* sin, int dim) {
  for (int i = 0; i < dim / 2; ++i) {
    const float a = x[i], b = x[i + dim / 2];
    x[i] = a * cos[i] - b * sin[i];
    x[i + dim / 2] = b * cos[i] + a * sin[i];
  }
}

// Runs one pass; one object per thread, all in step.
template <class Kind>
class Worker {
  using T = typename Kind::T;
  static constexpr int S = Kind::S;

 public:
  Worker(Model& model, const Pass& pass, Barrier& barrier, std::atomic<int>* next, int thread, int threads)
      : m_(model), s_(model.shape), p_(pass), barrier_(barrier), next_(next), thread_(thread), threads_(threads) {
    scratch_ = model.quantised ? model.scratch[thread]->data() : nullptr;
  }

  void run() {
    embed();
    for (int layer = 0; layer < s_.layers; ++layer) {
      Layer& l = m_.layers[layer];
      norm(l.input_norm);
      project(l.qkv);
      place(l, layer);
      attend(layer);
      add(l.out, m_.attended.data());
      norm(l.post_norm);
      gate(l.gate_up);
      add(l.down, m_.inner.data());
    }
    finish();
  }

 private:
  Range mine(int items) const { return share(items, thread_, threads_); }

  void embed() {
    const T* table = static_cast<const T*>(m_.embedding);
    const Range r = mine(p_.tokens);
    for (int t = r.begin; t < r.end; ++t)
      for (int i = 0; i < s_.hidden; ++i)
        m_.x[size_t(t) * s_.hidden + i] = Kind::to_float(table[size_t(p_.token_ids[t]) * s_.hidden + i]);
    barrier_.wait();
  }

  void norm(const std::vector<float>& weight) {
    const Range r = mine(p_.tokens);
    for (int t = r.begin; t < r.end; ++t)
      rms_norm<Kind>(&m_.x[size_t(t) * s_.hidden], weight.data(), s_.hidden, s_.eps,
                     reinterpret_cast<T*>(m_.normed.data()) + size_t(t) * s_.hidden);
    barrier_.wait();
  }

  void project(const Matrix& w) {
    float* out = m_.qkv.data();
    multiply<Kind, 2>(w, m_.normed.data(), p_.tokens, mine(w.tiles()), scratch_, [&](int row, int col, const float* v) {
      const int n = std::min(32, w.n - col);
      float* y = out + size_t(row) * w.n + col;
      for (int i = 0; i < n; ++i) y[i] = v[i];
      if (!w.bias.empty())
        for (int i = 0; i < n; ++i) y[i] += w.bias[col + i];
    });
    barrier_.wait();
  }

  // Normalises and rotates queries and keys; puts keys and values into the cache.
  void place(const Layer& l, int layer) {
    const int heads = s_.heads + 2 * s_.kv_heads, d = s_.dim;
    const Range r = mine(p_.tokens * heads);
    for (int item = r.begin; item < r.end; ++item) {
      const int t = item / heads, h = item % heads, pos = p_.positions[t];
      float* x = &m_.qkv[(size_t(t) * heads + h) * d];
      const float *cos = &m_.cos[size_t(pos) * d / 2], *sin = &m_.sin[size_t(pos) * d / 2];
      if (h < s_.heads) {
        norm_head(x, l.q_norm, s_.eps);
        rotate(x, cos, sin, d);
        T* q = reinterpret_cast<T*>(m_.query.data()) + (size_t(t) * s_.heads + h) * d;
        for (int i = 0; i < d; ++i) q[i] = Kind::from_float(x[i]);
      } else if (h < s_.heads + s_.kv_heads) {
        norm_head(x, l.k_norm, s_.eps);
        rotate(x, cos, sin, d);
        store_key(layer, p_.write_slots[t], h - s_.heads, x);
      } else {
        store_value(layer, p_.write_slots[t], h - s_.heads - s_.kv_heads, x);
      }
    }
    if (thread_ == 0) next_[layer].store(0, std::memory_order_relaxed);
    barrier_.wait();
  }

  // The 16 entries of one block for one head, of keys or of values.
  T* block_of(void* cache, int layer, int block, int head) const {
    return static_cast<T*>(cache) +
           ((size_t(layer) * p_.cache_blocks + block) * s_.kv_heads + head) * s_.dim * BLOCK;
  }
  void store_key(int layer, int slot, int head, const float* x) const {
    T* block = block_of(p_.keys, layer, slot / BLOCK, head);
    for (int i = 0; i < s_.dim; ++i) block[((i / S) * BLOCK + slot % BLOCK) * S + i % S] = Kind::from_float(x[i]);
  }
  void store_value(int layer, int slot, int head, const float* x) const {
    const int lane = slot % BLOCK;
    T* pair = block_of(p_.values, layer, slot / BLOCK, head) + size_t(lane / S) * s_.dim * S + lane % S;
    for (int i = 0; i < s_.dim; ++i) pair[i * S] = Kind::from_float(x[i]);
  }

  // Work is handed out in tiles of at most 6 (token, head) rows that share a KV head; fewer when there
  // is little work, so that all threads get some.
  void attend(int layer) {
    const int group = s_.heads / s_.kv_heads;
    const int most = std::clamp(p_.tokens * s_.heads / (4 * threads_), 1, 6);
    int first = 0;
    int unit = next_[layer].fetch_add(1, std::memory_order_relaxed);
    for (int s = 0; s < p_.sequences; ++s) {
      const int rows = (p_.row_start[s + 1] - p_.row_start[s]) * group;
      const int tiles = (rows + most - 1) / most, units = tiles * s_.kv_heads;
      for (; unit < first + units; unit = next_[layer].fetch_add(1, std::memory_order_relaxed)) {
        const Range r = share(rows, (unit - first) % tiles, tiles);
        attend_rows<6>(layer, s, (unit - first) / tiles, r.begin, r.end - r.begin);
      }
      first += units;
    }
    barrier_.wait();
  }

  template <int RT>
  void attend_rows(int layer, int s, int kv, int first, int rows) {
    if (rows == RT) return attend_tile<RT>(layer, s, kv, first);
    if constexpr (RT > 1) attend_rows<RT - 1>(layer, s, kv, first, rows);
  }

  template <int RT>
  void attend_tile(int layer, int s, int kv, int first) {
    const int group = s_.heads / s_.kv_heads, d = s_.dim, steps = d / S;
    const int32_t* table = p_.blocks + p_.block_start[s];
    int token[RT], head[RT], most = 0, last = 0;
    const Unit* q[RT];
    for (int r = 0; r < RT; ++r) {
      token[r] = p_.row_start[s] + (first + r) / group;
      head[r] = kv * group + (first + r) % group;
      q[r] = m_.query.data() + (size_t(token[r]) * s_.heads + head[r]) * steps;
      most = std::max(most, p_.visible[token[r]]);
      const int e = p_.extra_start[token[r] + 1];
      last = std::max(last, e > p_.extra_start[token[r]] ? p_.extra[e - 1] + 1 : 0);
    }
    const int blocks = (std::max(most, last) + BLOCK - 1) / BLOCK, width = blocks * BLOCK + 2 * LANES;
    scores_.resize(size_t(RT) * width);
    int b = 0;
    for (; b + 4 <= blocks; b += 4) dot<RT, 4>(layer, kv, table, b, q, width);
    for (; b < blocks; ++b) dot<RT, 1>(layer, kv, table, b, q, width);
    weights_.resize(size_t(RT) * width / S);
    float scale[RT];
    for (int r = 0; r < RT; ++r)
      scale[r] = soften(token[r], &scores_[size_t(r) * width], &weights_[size_t(r) * width / S], most);
    for (int c = 0; c < d; c += 64) {
      const int vectors = std::min(4, (d - c) / LANES);
      if (vectors == 4) mix<RT, 4>(layer, kv, table, token, head, scale, width, most, c);
      else
        for (int v = 0; v < vectors; ++v) mix<RT, 1>(layer, kv, table, token, head, scale, width, most, c + v * LANES);
    }
  }

  // Scores of RT rows against NB blocks of keys.
  template <int RT, int NB>
  void dot(int layer, int kv, const int32_t* table, int b, const Unit* const* q, int width) {
    const char* k[NB];
    for (int i = 0; i < NB; ++i) k[i] = reinterpret_cast<const char*>(block_of(p_.keys, layer, table[b + i], kv));
    __m512 acc[RT][NB];
    for (int r = 0; r < RT; ++r)
      for (int i = 0; i < NB; ++i) acc[r][i] = _mm512_setzero_ps();
    for (int step = 0; step < s_.dim / S; ++step) {
      __m512i kk[NB];
      for (int i = 0; i < NB; ++i) kk[i] = _mm512_loadu_si512(k[i] + size_t(step) * 64);
      for (int r = 0; r < RT; ++r)
        for (int i = 0; i < NB; ++i) acc[r][i] = Kind::madd(acc[r][i], kk[i], q[r][step]);
    }
    for (int r = 0; r < RT; ++r)
      for (int i = 0; i < NB; ++i) _mm512_storeu_ps(&scores_[size_t(r) * width + (b + i) * BLOCK], acc[r][i]);
  }

  // Scores to unnormalised probabilities in `x`, visible positions first, then the extra ones; and as
  // factors in `w`, zeros from the first step that is not wholly visible up to position `most`, because
  // other rows of the tile see more. Returns what normalises them.
  float soften(int token, float* x, Unit* w, int most) const {
    const int visible = p_.visible[token], begin = p_.extra_start[token], end = p_.extra_start[token + 1];
    for (int j = begin; j < end; ++j) x[visible + j - begin] = x[p_.extra[j]];  // extras ascend: safe in place
    const int n = visible + end - begin;
    const float factor = 1.0f / std::sqrt(float(s_.dim));
    for (int i = n; i < ((n + LANES - 1) & ~(LANES - 1)); ++i) x[i] = -INFINITY;
    __m512 top = _mm512_set1_ps(-INFINITY);
    for (int i = 0; i < n; i += LANES) top = _mm512_max_ps(top, _mm512_loadu_ps(x + i));
    const __m512 peak = _mm512_set1_ps(_mm512_reduce_max_ps(top)), f = _mm512_set1_ps(factor);
    __m512 sum = _mm512_setzero_ps();
    for (int i = 0; i < n; i += LANES) {
      const int left = n - i;
      const __mmask16 valid = left >= LANES ? 0xFFFF : __mmask16((1u << left) - 1);
      const __m512 delta = _mm512_mul_ps(_mm512_sub_ps(_mm512_loadu_ps(x + i), peak), f);
      const __m512 e = _mm512_maskz_mov_ps(valid, vexp(delta));
      sum = _mm512_add_ps(sum, e);
      _mm512_storeu_ps(x + i, e);
      Kind::store(reinterpret_cast<T*>(w) + i, e);
    }
    std::fill(w + visible / S, w + (most + S - 1) / S, 0);
    return 1.0f / _mm512_reduce_add_ps(sum);
  }

  // Weighted sums of values, NV vectors of the head from column c. Positions are taken S at a time in the
  // order in which they lie, or will lie once committed; a row's last ones are collected from where they
  // are: the odd end of its visible stretch and the nodes on its path.
  template <int RT, int NV>
  void mix(int layer, int kv, const int32_t* table, const int* token, const int* head, const float* scale,
           int width, int most, int c) {
    __m512 acc[RT][NV];
    for (int r = 0; r < RT; ++r)
      for (int v = 0; v < NV; ++v) acc[r][v] = _mm512_setzero_ps();
    const int steps = most / S;
    for (int u = 0; u < steps; u += BLOCK / S) {
      const T* base = block_of(p_.values, layer, table[u * S / BLOCK], kv) + c * S;
      const int n = std::min(BLOCK / S, steps - u);
      for (int i = 0; i < n; ++i, base += s_.dim * S) {
        __m512i vv[NV];
        for (int v = 0; v < NV; ++v) vv[v] = _mm512_loadu_si512(base + v * LANES * S);
        for (int r = 0; r < RT; ++r)
          for (int v = 0; v < NV; ++v)
            acc[r][v] = Kind::madd(acc[r][v], vv[v], weights_[size_t(r) * width / S + u + i]);
      }
    }
    for (int r = 0; r < RT; ++r) {
      mix_end<NV>(layer, kv, table, token[r], &scores_[size_t(r) * width], c, acc[r]);
      T* out = reinterpret_cast<T*>(m_.attended.data()) + (size_t(token[r]) * s_.heads + head[r]) * s_.dim + c;
      for (int v = 0; v < NV; ++v)
        Kind::store(out + v * LANES, _mm512_mul_ps(acc[r][v], _mm512_set1_ps(scale[r])));
    }
  }

  template <int NV>
  void mix_end(int layer, int kv, const int32_t* table, int token, const float* p, int c, __m512* acc) {
    const int visible = p_.visible[token], begin = p_.extra_start[token];
    const int n = visible + p_.extra_start[token + 1] - begin;
    for (int i = visible / S * S; i < n; i += S) {
      __m512i vv[NV];
      for (int v = 0; v < NV; ++v) vv[v] = _mm512_setzero_si512();
      T factors[S] = {};
      for (int j = 0; j < S && i + j < n; ++j) {
        const int at = i + j < visible ? i + j : p_.extra[begin + i + j - visible], lane = at % BLOCK;
        const T* pair = block_of(p_.values, layer, table[at / BLOCK], kv) + (size_t(lane / S) * s_.dim + c) * S;
        for (int v = 0; v < NV; ++v)
          vv[v] = _mm512_or_si512(vv[v], Kind::pick(_mm512_loadu_si512(pair + v * LANES * S), lane % S, j));
        factors[j] = Kind::from_float(p[i + j]);
      }
      Unit factor;
      std::memcpy(&factor, factors, sizeof(Unit));
      for (int v = 0; v < NV; ++v) acc[v] = Kind::madd(acc[v], vv[v], factor);
    }
  }

  // x += a W^T + bias
  void add(const Matrix& w, const Unit* a) {
    multiply<Kind, 2>(w, a, p_.tokens, mine(w.tiles()), scratch_, [&](int row, int col, const float* v) {
      float* y = &m_.x[size_t(row) * s_.hidden + col];
      const int n = std::min(32, w.n - col);
      for (int i = 0; i < n; ++i) y[i] += v[i];
      if (!w.bias.empty())
        for (int i = 0; i < n; ++i) y[i] += w.bias[col + i];
    });
    barrier_.wait();
  }

  // inner = silu(gate) * up; a tile holds 32 gate columns and the 32 up columns beside them
  void gate(const Matrix& w) {
    T* inner = reinterpret_cast<T*>(m_.inner.data());
    multiply<Kind, 4>(w, m_.normed.data(), p_.tokens, mine(w.tiles()), scratch_, [&](int row, int col, const float* v) {
      const int first = col / 2, n = std::min(32, s_.inter - first);
      T* y = inner + size_t(row) * s_.inter + first;
      for (int i = 0; i < n; i += LANES) {
        const __m512 g = _mm512_load_ps(v + i), up = _mm512_load_ps(v + 32 + i);
        const __m512 e = vexp(_mm512_sub_ps(_mm512_setzero_ps(), g));
        const __m512 h = _mm512_mul_ps(_mm512_div_ps(g, _mm512_add_ps(_mm512_set1_ps(1.0f), e)), up);
        if (n - i >= LANES) {
          Kind::store(y + i, h);
        } else {
          alignas(64) float rest[LANES];
          _mm512_store_ps(rest, h);
          for (int j = 0; j < n - i; ++j) y[i + j] = Kind::from_float(rest[j]);
        }
      }
    });
    barrier_.wait();
  }

  void finish() {
    const Range r = mine(p_.logits);
    for (int i = r.begin; i < r.end; ++i) {
      const float* x = &m_.x[size_t(p_.logit_rows[i]) * s_.hidden];
      rms_norm<Kind>(x, m_.final_norm.data(), s_.hidden, s_.eps,
                     reinterpret_cast<T*>(m_.normed.data()) + size_t(i) * s_.hidden);
    }
    barrier_.wait();
    multiply<Kind, 4>(m_.head, m_.normed.data(), p_.logits, mine(m_.head.tiles()), scratch_,
                      [&](int row, int col, const float* v) {
                        const int n = std::min(64, s_.vocab - col);
                        std::memcpy(p_.logits_out + size_t(row) * s_.vocab + col, v, n * sizeof(float));
                      });
  }

  Model& m_;
  const Shape& s_;
  const Pass& p_;
  Barrier& barrier_;
  std::atomic<int>* next_;
  const int thread_, threads_;
  char* scratch_;  // one expanded tile
  std::vector<float> scores_;
  std::vector<Unit> weights_;
};

template <class Kind>
void forward(Model& m, const Pass& p) {
  const Shape& s = m.shape;
  const size_t t = std::max(p.tokens, p.logits);
  const auto units = [](size_t elements) { return (elements + Kind::S - 1) / Kind::S; };
  m.x.resize(std::max(m.x.size(), t * s.hidden));
  m.qkv.resize(std::max(m.qkv.size(), t * (s.heads + 2 * s.kv_heads) * s.dim));
  m.normed.resize(std::max(m.normed.size(), units(t * s.hidden)));
  m.query.resize(std::max(m.query.size(), units(t * s.heads * s.dim)));
  m.attended.resize(std::max(m.attended.size(), units(t * s.heads * s.dim)));
  m.inner.resize(std::max(m.inner.size(), units(t * s.inter)));
  while (m.quantised && int(m.scratch.size()) < p.threads)
    m.scratch.push_back(std::make_unique<Arena>(size_t(std::max(s.hidden, std::max(s.inter, s.heads * s.dim))) * 4 * 32));
  Barrier barrier(p.threads);
  std::vector<std::atomic<int>> next(s.layers);
#pragma omp parallel num_threads(p.threads)
  Worker<Kind>(m, p, barrier, next.data(), omp_get_thread_num(), p.threads).run();
}

// Which columns a matrix has, how deep it is, how wide its tiles are; `fill(matrix, columns, k, vectors, rows)`.
template <class Fill>
void set_matrix(Model& m, int layer, int which, Fill fill) {
  const Shape& s = m.shape;
  const int qkv = (s.heads + 2 * s.kv_heads) * s.dim;
  const auto rows_up_to = [](int n) { return [n](int c) { return c < n ? c : -1; }; };
  if (which == 4) return fill(m.head, s.vocab, s.hidden, 4, rows_up_to(s.vocab));
  Layer& l = m.layers[layer];
  if (which == 0) fill(l.qkv, qkv, s.hidden, 2, rows_up_to(qkv));
  if (which == 1) fill(l.out, s.hidden, s.heads * s.dim, 2, rows_up_to(s.hidden));
  if (which == 2) {
    const int padded = (s.inter + 31) / 32 * 32;
    fill(l.gate_up, 2 * padded, s.hidden, 4, [&s](int c) {
      const int column = c / 64 * 32 + c % 32;
      if (column >= s.inter) return -1;
      return c % 64 < 32 ? column : s.inter + column;
    });
  }
  if (which == 3) fill(l.down, s.hidden, s.inter, 2, rows_up_to(s.hidden));
}

template <class Kind>
void set_dense(Model& m, int layer, int which, const void* data) {
  set_matrix(m, layer, which, [data](Matrix& to, int columns, int k, int vectors, auto rows) {
    pack<Kind>(to, static_cast<const typename Kind::T*>(data), columns, k, vectors, rows);
  });
}

template <class T>
void move_rows(const Shape& s, T* keys, T* values, int64_t blocks, int step, int count, const int32_t* source,
               const int32_t* target) {
  const int row = s.kv_heads * s.dim;
  std::vector<T> held(size_t(count) * row * 2);
  for (int layer = 0; layer < s.layers; ++layer) {
    const size_t base = size_t(layer) * blocks * BLOCK * row;
    // i: element of [keys, values][KV heads, D]
    const auto at = [&](int slot, int i) -> T& {
      const int head = i % row / s.dim, d = i % s.dim, lane = slot % BLOCK;
      const size_t block = base + (size_t(slot / BLOCK) * s.kv_heads + head) * s.dim * BLOCK;
      if (i < row) return keys[block + ((d / step) * BLOCK + lane) * step + d % step];
      return values[block + (size_t(lane / step) * s.dim + d) * step + lane % step];
    };
    for (int j = 0; j < count; ++j)
      for (int i = 0; i < 2 * row; ++i) held[size_t(j) * 2 * row + i] = at(source[j], i);
    for (int j = 0; j < count; ++j)
      for (int i = 0; i < 2 * row; ++i) at(target[j], i) = held[size_t(j) * 2 * row + i];
  }
}

// Turns the keys of some slots by an angle per pair of dimensions.
template <class Kind>
void rotate_keys(const Shape& s, void* cache, int64_t blocks, int count, const int32_t* slots, const float* cos,
                 const float* sin) {
  using T = typename Kind::T;
  std::vector<float> x(s.dim);
  for (int layer = 0; layer < s.layers; ++layer)
    for (int j = 0; j < count; ++j)
      for (int head = 0; head < s.kv_heads; ++head) {
        const int lane = slots[j] % BLOCK;
        T* block = static_cast<T*>(cache) +
                   ((size_t(layer) * blocks + slots[j] / BLOCK) * s.kv_heads + head) * s.dim * BLOCK;
        const auto at = [&](int i) -> T& { return block[((i / Kind::S) * BLOCK + lane) * Kind::S + i % Kind::S]; };
        for (int i = 0; i < s.dim; ++i) x[i] = Kind::to_float(at(i));
        rotate(x.data(), cos, sin, s.dim);
        for (int i = 0; i < s.dim; ++i) at(i) = Kind::from_float(x[i]);
      }
}

}  // namespace

// ---------------------------------------------------------------------------------- C interface

extern "C" {

int si_supports_bf16() {
#ifdef __AVX512BF16__
  return 1;
#else
  return 0;
#endif
}

void* si_model_new(const Shape* shape, int bf16, const float* cos, const float* sin) {
  Model* m = new Model;
  m->shape = *shape;
  m->bf16 = bf16 != 0;
  m->layers = std::vector<Layer>(shape->layers);
  const size_t n = size_t(shape->max_positions) * shape->dim / 2;
  m->cos.assign(cos, cos + n);
  m->sin.assign(sin, sin + n);
  return m;
}

void si_model_free(void* model) { delete static_cast<Model*>(model); }

// which: 0 qkv, 1 attention output, 2 gate and up, 3 down, 4 head; data: [N, K], contiguous
void si_set_matrix(void* model, int layer, int which, const void* data) {
  Model& m = *static_cast<Model*>(model);
#ifdef __AVX512BF16__
  if (m.bf16) return set_dense<Bf16>(m, layer, which, data);
#endif
  set_dense<F32>(m, layer, which, data);
}

// The same from GGUF blocks: [N, K / 32] of 20 bytes (storage 1, Q4_1) or 34 bytes (2, Q8_0); bfloat16 only.
void si_set_quantised(void* model, int layer, int which, const uint8_t* data, int storage) {
  Model& m = *static_cast<Model*>(model);
  m.quantised = true;
  set_matrix(m, layer, which, [=](Matrix& to, int columns, int k, int vectors, auto rows) {
    pack_quantised(to, data, Storage(storage), columns, k, vectors, rows);
  });
}

// which: 0 input norm, 1 post-attention norm, 2 query norm, 3 key norm, 4 final norm, 5 qkv bias
void si_set_vector(void* model, int layer, int which, const float* data, int n) {
  Model& m = *static_cast<Model*>(model);
  std::vector<float>* targets[] = {nullptr, nullptr, nullptr, nullptr, &m.final_norm, nullptr};
  if (which != 4) {
    Layer& l = m.layers[layer];
    targets[0] = &l.input_norm, targets[1] = &l.post_norm, targets[2] = &l.q_norm;
    targets[3] = &l.k_norm, targets[5] = &l.qkv.bias;
  }
  targets[which]->assign(data, data + n);
}

// The table stays the caller's: [vocabulary, hidden] in the model's type.
void si_set_embedding(void* model, const void* table) { static_cast<Model*>(model)->embedding = table; }

void si_forward(void* model, const Pass* pass) {
  Model& m = *static_cast<Model*>(model);
#ifdef __AVX512BF16__
  if (m.bf16) return forward<Bf16>(m, *pass);
#endif
  forward<F32>(m, *pass);
}

// Moves cache entries, all sources read before any target is written.
void si_move(void* model, void* keys, void* values, int64_t blocks, int count, const int32_t* source,
             const int32_t* target) {
  Model& m = *static_cast<Model*>(model);
  if (m.bf16)
    move_rows(m.shape, static_cast<uint16_t*>(keys), static_cast<uint16_t*>(values), blocks, 2, count, source, target);
  else
    move_rows(m.shape, static_cast<float*>(keys), static_cast<float*>(values), blocks, 1, count, source, target);
}

// Turns keys by delta positions; cos, sin: [D/2] of delta times the rotary frequencies.
void si_rotate(void* model, void* keys, int64_t blocks, int count, const int32_t* slots, const float* cos,
               const float* sin) {
  Model& m = *static_cast<Model*>(model);
#ifdef __AVX512BF16__
  if (m.bf16) return rotate_keys<Bf16>(m.shape, keys, blocks, count, slots, cos, sin);
#endif
  rotate_keys<F32>(m.shape, keys, blocks, count, slots, cos, sin);
}

}  // extern "C"
