// The CUDA kernels as the host sees them: one function a kernel family, device pointers and plain numbers in. Nothing
// here allocates or waits. Activations are f32, row after row. They are written for sm_80 and later; products want
// 227 KiB of shared memory a block (sm_90, sm_100).
#pragma once

#include <cstdint>

#include "backends/cuda/part/kernels/launch.h"
#include "graph/kv_type.h"
#include "quant/formats.h"

namespace argent::cuda {

// ---- matrix products (planes.cuh, relay.cu, product*.cu) --------------------------------------

// A weight matrix as relay() lays it out. Float formats: as in the file.
struct Matrix {
  const uint8_t* data = nullptr;
  Format format = Format::f32;
  uint32_t n_out = 0, n_in = 0;
};
uint64_t matrix_bytes(Format format, uint32_t n_out, uint32_t n_in);
// From the file's rows, in device memory, to the layout that products read; rows [first, first + n) at `rows`, first a
// multiple of 16, and n too but for the last part.
void relay(Launch& launch, const Matrix& to, const uint8_t* rows, uint32_t first, uint32_t n);

// Rows of activations as int8 in groups of 32 with a scale: the rule of backends/cpu/activations.h. Eight rows and a
// group are a record of 384 bytes, at (row / 8 * (n_in / 32) + group) * 384:
//   [8 rows][32] quants, words of a group in the order 0 4 1 5 2 6 3 7 (as mma.m16n8k32 wants its B operand);
//   [8] scales; [8] scale * sum of the quants; [8] the same of the first 16 and of the last 16
struct Q8 {
  uint8_t* q = nullptr;
  uint32_t n_rows = 0, n_in = 0;
};
inline constexpr uint32_t kQ8Rows = 8, kQ8Record = 384;
constexpr uint64_t q8_bytes(uint64_t n_rows, uint64_t n_in) { return (n_rows + 7) / 8 * (n_in / 32) * kQ8Record; }
constexpr bool is_float(Format f) { return f == Format::f32 || f == Format::f16 || f == Format::bf16; }

void quantize(Launch& launch, const float* x, uint32_t n_rows, uint32_t n_in, const Q8& to);

// Elements whose squares are added up as a piece, in norms and in products whose result is normed next.
inline constexpr uint32_t kNormPiece = 16;
// The row of products of one row, where they make int8 of it themselves.
struct OwnRow {
  const float* x = nullptr;        // [n_in]; null: the row is there as Q8
  const float* squares = nullptr;  // [n_in / kNormPiece] sums of its squares: x is normed first; or null
  const float* norm = nullptr;     // [n_in] weights of the norm, or null
  float eps = 0;
};

// Up to so many rows a product's sums are those of one row, from int8 rows. Those of more rows, where wide(): from rows
// as f16, which also lie where Q8::q points (product_rows.cuh); quantize() and norms make them.
inline constexpr uint32_t kWideAbove = 16;
// True on sm_90 where the part was compiled for sm_90a.
bool wide_is_there();
inline bool wide(const Launch& launch, uint32_t n_rows) {
  return n_rows > kWideAbove && launch.wide && wide_is_there();
}
// Bytes of the buffer at Q8::q for products of up to n_rows rows; a multiple of 128.
uint64_t product_rows_bytes(uint32_t n_rows, uint32_t n_in);

// One of up to three products of the same rows in one launch.
struct ProductPart {
  Matrix w;
  float* y = nullptr;               // [n_rows][n_out]
  const float* bias = nullptr;      // [n_out] f32, or null
  const float* residual = nullptr;  // [n_rows][n_out], added; may be y; or null
  float* squares = nullptr;         // [n_out / kNormPiece], of y where n_rows is 1, for OwnRow; or null
};
// y = x w^T (+ bias) (+ residual). x: used by float formats; q: by the others, or own in its place where n_rows is 1;
// what no part uses may be absent. Parts of other formats than the first's run beside it.
void products(Launch& launch, const ProductPart* parts, uint32_t n_parts, const float* x, const Q8& q,
              const OwnRow& own, uint32_t n_rows);
enum class Act : uint8_t { silu, gelu };
// True where gate and up can be one launch; else products() and gate_up().
bool glu_is_fused(const Matrix& gate, const Matrix& up);
// y = act(x gate^T) * (x up^T)
void glu(Launch& launch, const Matrix& gate, const Matrix& up, Act act, const Q8& q, const OwnRow& own, float* y,
         uint32_t n_rows);
// y [n_rows][n_in] = rows `ids` of the matrix
void embed(Launch& launch, const Matrix& w, const int32_t* ids, uint32_t n_rows, float* y);

// ---- rows (rows.cu, elements.cu) -----------------------------------------------------------------------------------

inline constexpr uint32_t kMostNorm = 32768;  // elements of a norm
inline constexpr uint32_t kMostGrid = 65535;  // rows that sample
// Groups of a row: x / sqrt(mean(x^2) + eps) (* w, repeated along the row where it is shorter). group: elements of a
// norm, a divisor of width; w: null or n_w f32, n_w a divisor of width. All may work in place.
struct Norm {
  uint32_t n_rows, width, group;
  float eps;
  const float* w;
  uint32_t n_w;
};
// y = norm(x). to.q != null: y also (y != null) or only (y == null) as Q8, or as f16 where wide(); then group == width.
void norm(Launch& launch, const Norm& n, const float* x, float* y, const Q8& to);
// s = a + b; y = norm(s), as above; s may be a or b.
void add_norm(Launch& launch, const Norm& n, const float* a, const float* b, float* s, float* y, const Q8& to);
// y = norm(x) + r
void norm_add(Launch& launch, const Norm& n, const float* x, const float* r, float* y);
// s = norm(x) + r; y = norm2(s); as above. n2 has the rows, width and group of n.
void norm_add_norm(Launch& launch, const Norm& n, const Norm& n2, const float* x, const float* r, float* s, float* y,
                   const Q8& to);

// y[i] = f(x[i]); y[i] = f(x[i], z[i]); y[i] = f(x[i], v[i % n_v]): i < n elements. In place where y is x.
enum class Unary : uint8_t { copy, scale, silu, gelu, sigmoid, softcap };
enum class Binary : uint8_t { add, mul, mul_sigmoid, silu_mul, gelu_mul };  // the last: f(x) * z
void unary(Launch& launch, Unary f, float parameter, const float* x, float* y, uint64_t n);
void binary(Launch& launch, Binary f, const float* x, const float* z, float* y, uint64_t n);
void with_vector(Launch& launch, Binary f, const float* x, const float* v, uint32_t n_v, float* y, uint64_t n);
// Words between the device's memory and pinned memory of the host: for the few that a step has it is quicker than a
// copy of the runtime's, which changes from one engine to the other and back (5 us each way on the H200).
void copy_words(Launch& launch, const uint32_t* from, uint32_t* to, uint32_t n);
// y [n_out][width words] = rows `index` of x
void gather(Launch& launch, const uint32_t* x, const int32_t* index, uint32_t n_out, uint32_t width, uint32_t* y);

// ---- position and cache (rope.cu, heads.cu) ------------------------------------------------------------------------

// What attention and the cache need of a step; device memory, the same addresses in every step.
struct KvSequence {
  uint32_t first_row, n_rows, length, table;  // as in metal/kernels/args_step.h
};
struct StepRows {
  const int32_t* positions;      // [n_rows]
  const uint32_t* row_sequence;  // [n_rows]
  const KvSequence* sequences;   // of the layer group
  const int32_t* tables;         // of the layer group
};
// A layer's part of the cache: block b of the group at base + b * block_bytes. K of a block: [n_head_kv][32][d_head],
// elements first, then q8_0's scales (halves, [n_head_kv][32][d_head / 32]); V the same with d_value.
struct KvPlace {
  uint8_t *k, *v;
  uint64_t block_bytes;
  KvType type_k, type_v;
  uint32_t n_head_kv, d_head, d_value;
};

struct RopeFrequencies {  // of a table: theta(i) = position * base[i]; magnitude multiplies cos and sin
  const double* base;     // [n_rot / 2], device memory
  uint32_t n_rot;
  double magnitude;
};
void rope_table(Launch& launch, const RopeFrequencies& f, const int32_t* positions, uint32_t n_rows, float* table);
void rope(Launch& launch, const float* x, const float* table, float* y, uint32_t n_rows, uint32_t n_head,
          uint32_t d_head, uint32_t n_rot, bool interleaved);
void kv_store(Launch& launch, const float* k, const float* v, const StepRows& step, const KvPlace& kv, uint32_t n_rows);
// After the projections: norms of the heads of q and k (weights may be null), rope of both (table may be null), k and v
// into the cache; q in place.
struct Heads {
  float *q, *k, *v;  // [n_rows][heads * d]
  const float *norm_q, *norm_k, *table;
  float eps;
  uint32_t n_rows, n_head, n_rot;
  bool interleaved;
};
void heads(Launch& launch, const Heads& h, const StepRows& step, const KvPlace& kv);

// ---- attention (attention*.cu) -------------------------------------------------------------------------------------

// Attention in fixed splits: positions [n i, n i + n) of a sequence are a split (n depends on what the row sees and on
// the model), its partial result is the same whatever else is in the step, and the splits of a row are combined in
// order. The lists are made by the host (attention_work.h) for each step and layer group; grids do not depend on what
// is in them, kernels walk them. They and the block tables are copied to the device before the step's first kernel:
// kernels read them before they wait.
inline constexpr uint32_t kSplitKeys = 256;
// Of attention_is_fast: a cluster of kSplitRanks CTAs has a split of kFastSplitKeys, for up to 8 query heads of a KV
// head, where a launch has few of them; else a CTA has it, and splits of very long rows may have up to kMostSplitKeys.
inline constexpr uint32_t kFastSplitKeys = 1024, kMostSplitKeys = 8192, kSplitRanks = 8;
// CTAs or clusters that an item takes.
constexpr uint32_t attention_ctas(uint32_t n_head, uint32_t n_head_kv) {
  return n_head_kv * ((n_head / n_head_kv + 7) / 8);
}
// The most clusters of a launch: an H200 has room for 62 at a time, but lists of one row are up to half empty. A step
// with a split of more than kFastSplitKeys has more items than that.
inline constexpr uint32_t kMostClusters = 96;
inline constexpr uint32_t kTileRows = 64;
inline constexpr uint32_t kWholeRow = ~0u;
struct AttentionItem {  // a row and those of its keys that are in a split, or all of them
  uint32_t q_row;       // row of q and y
  uint32_t table;       // the sequence's block table begins at this entry of the group's tables
  uint32_t first, end;  // positions, all visible to the row; end > first
  uint32_t slot;        // of the partial results; kWholeRow: the result is final
  uint32_t written;     // keys and values of positions below were written before the step: they may be read at any time
};
struct AttentionRow {  // a row of more than one split: its partial results are slots first_slot ... in order
  uint32_t q_row, first_slot, n_splits;
};
struct AttentionTile {       // neighbouring rows of a sequence with many in the step: they go through together, unsplit
  uint32_t q_row, n_rows;    // n_rows <= kTileRows
  uint32_t table, position;  // position of the first row
};
struct AttentionWork {     // device memory
  const uint32_t* counts;  // items, rows, tiles
  const AttentionItem* items;
  const AttentionRow* rows;
  const AttentionTile* tiles;
};
// True where rows of long sequences may be tiles and items are at most a split; elsewhere items may also be whole rows.
constexpr bool attention_is_fast(KvType k, KvType v, uint32_t d_head, uint32_t d_value) {
  return k == v && (k == KvType::f16 || k == KvType::bf16) && d_head == d_value &&
         (d_head == 64 || d_head == 80 || d_head == 96 || d_head == 128 || d_head == 256);
}
// Bytes of the partial results, [slots][n_head][d_value + 4] f32: sums of weighted values, maximum (in base 2), sum.
constexpr uint64_t attention_partial_bytes(uint64_t slots, uint32_t n_head, uint32_t d_value) {
  return slots * n_head * (uint64_t(d_value) + 4) * 4;
}
struct Attention {
  const float* q;        // [n_rows][n_head * d_head]
  float* y;              // [n_rows][n_head * d_value], or null where only q8 is wanted
  Q8 q8;                 // q8.q != null: y also as int8; d_value is a multiple of 32 then
  uint32_t n_head;       // a multiple of n_head_kv
  float scale, softcap;  // softcap 0: none
  bool rounded_queries;  // q8_0 keys: queries to int16, as the reference's native mode does
  uint32_t window;       // 0: none; what tiles see (items say themselves)
  AttentionWork work;
  float* partial;  // attention_partial_bytes; a multiple of 16
  // The most that the lists may hold where this launch is used: they have room for it, and grids are made for it. 0
  // starts no kernel for a list.
  uint32_t max_items, max_rows, max_tiles;
};
// d_head and d_value up to 512. K, V and block_bytes of the cache are multiples of 16, y and q too.
void attention(Launch& launch, const Attention& a, const StepRows& step, const KvPlace& kv);

// ---- sampling (sample.cu): the ops of sample/rules.h, to the bit ---------------------------------------------------

// What sampling ops read of a step (sample/device_step.h packs it); device memory.
struct SampleStep {
  const void* rows;      // SampleRow [n_outputs]
  const uint32_t* data;  // what the rows point into
  int32_t* slots;        // by slot: what its sequence sampled last
  uint32_t n_slots;
};
uint64_t sample_workspace(uint32_t n_rows, uint32_t n_vocab);
// Lists of candidates are as sample/rules.h has them in an arena. scratch: sample_workspace bytes.
void adjust(Launch& launch, const float* logits, float* y, uint32_t n_rows, uint32_t n_vocab, const SampleStep& step);
void argmax(Launch& launch, const float* logits, int32_t* token, uint32_t n_rows, uint32_t n_vocab, void* scratch);
void top_k(Launch& launch, const float* logits, uint8_t* list, uint32_t n_rows, uint32_t n_vocab,
           const SampleStep& step, void* scratch);
enum class Filter : uint8_t { top_p, min_p, temperature };
void filter(Launch& launch, Filter f, const uint8_t* from, uint8_t* to, uint32_t n_rows, uint32_t n_vocab,
            const SampleStep& step);
void draw(Launch& launch, const uint8_t* list, int32_t* token, uint32_t n_rows, uint32_t n_vocab,
          const SampleStep& step);
// Tokens of a step: those that are ~slot become what the slot holds. And back: what the output rows sampled to slots.
void resolve_tokens(Launch& launch, const int32_t* tokens, int32_t* ids, uint32_t n_rows, const SampleStep& step);
void store_tokens(Launch& launch, const int32_t* sampled, uint32_t n_rows, const SampleStep& step);
}  // namespace argent::cuda
