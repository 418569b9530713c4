#include "metal/work.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "backends/metal/kernels/args.h"
#include "backends/metal/kernels/args_attention.h"
#include "backends/metal/kernels/args_elementwise.h"
#include "backends/metal/kernels/args_fused.h"
#include "backends/metal/kernels/args_norm.h"
#include "backends/metal/kernels/args_rope.h"
#include "backends/metal/kernels/args_sample.h"
#include "backends/metal/kernels/args_step.h"
#include "quant/formats.h"

namespace argent::metal {
namespace {

constexpr double kF = 4;       // bytes of a float
constexpr double kTile = 128;  // of an 8 x 8 matrix of halves

// How kernels/weights.h reads eight neighbouring weights: bytes that a lane asks for, and instructions to decode one.
// The instructions are estimates from the text: a conversion, a scale, and what the bits ask for.
struct Reading {
  double eight, decode;
};
Reading reading(Format format) {
  switch (format) {
    case Format::f32:
      return {32, 0};
    case Format::f16:
      return {16, 1};
    case Format::bf16:
      return {16, 1};
    case Format::q4_0:
      return {10, 2.5};
    case Format::q4_1:
      return {12, 2.5};
    case Format::q5_0:
      return {14, 4};
    case Format::q5_1:
      return {16, 4};
    case Format::q8_0:
      return {10, 2};
    case Format::q2_k:
      return {13, 3};
    case Format::q3_k:
      return {30, 5};
    case Format::q4_k:
      return {24, 3};
    case Format::q5_k:
      return {32, 4.5};
    case Format::q6_k:
      return {19, 5};
    case Format::iq4_nl:
      return {10, 4};
    case Format::iq4_xs:
      return {16, 4};
    default:
      return {9, 4};
  }
}
// A row's share of the loops that dots.h has for one token; Q4_0 and Q4_K have their own.
Reading dot_reading(Format format) {
  if (format == Format::q4_0) return {5, 1.5};
  if (format == Format::q4_k) return {8, 1.5};
  return reading(format);
}

Format format_of_id(uint32_t id) {
  for (const FormatInfo& f : kFormats)
    if (f.format && f.gguf_id == id) return *f.format;
  return Format::f32;
}

// mul_mv_<format> and its like.
Format format_of_suffix(const std::string& suffix) {
  for (const FormatInfo& f : kFormats) {
    std::string name(f.name);
    for (char& c : name) c = c >= 'A' && c <= 'Z' ? char(c + 32) : c;
    if (f.format && name == suffix) return *f.format;
  }
  return Format::f32;
}

class Reader {
 public:
  Reader(const Dispatch& d, const ConstantsOf& constants) : d_(d), constants_(constants(*d.pipeline)) {}
  template <class T>
  T args() const {
    T args{};
    for (const Dispatch::Value& v : d_.values)
      if (v.index == 0) std::memcpy(&args, v.bytes.data(), std::min(sizeof args, v.bytes.size()));
    return args;
  }
  uint32_t constant(uint32_t index) const {
    for (const FunctionConstant& c : constants_)
      if (c.index == index) return std::visit([](auto v) { return uint32_t(v); }, c.value);
    return 0;
  }
  Format format(uint32_t index) const { return format_of_id(constant(index)); }
  const Dispatch::Bound& bound(uint32_t index) const {
    return *std::find_if(d_.buffers.begin(), d_.buffers.end(), [&](const auto& b) { return b.index == index; });
  }
  template <class Item>
  std::vector<Item> list(uint32_t index) const {
    const std::byte* at = bound(index).buffer->bytes().data() + bound(index).offset;
    uint32_t n = 0;
    std::memcpy(&n, at, sizeof n);
    std::vector<Item> items(n);
    if (n) std::memcpy(items.data(), at + 4 * kAttentionListHead, n * sizeof(Item));
    return items;
  }
  // Bytes of an element of the cache.
  double cache_element(uint32_t index) const {
    const uint32_t type = constant(index);  // as kernels/kv.h numbers them
    return type == 2 ? 4 : type == 3 ? 1 + 2.0 / 32 : 2;
  }
  const Dispatch& d() const { return d_; }

 private:
  const Dispatch& d_;
  std::span<const FunctionConstant> constants_;
};

double row_of(Format format, double cols) { return cols / info(format).block * info(format).bytes; }

// ---- products of one token or a few: `simdgroups` of them read `rows` rows each, and x for each token

void add_dots(DispatchWork& w, Format format, double simdgroups, double rows, double cols, double tokens, bool own) {
  const Reading r = own ? dot_reading(format) : reading(format);
  w.loaded += simdgroups * cols / 8 * (rows * r.eight + 32 * tokens);
  w.operations += simdgroups * cols * rows * (r.decode + tokens);
  const double lanes = own && format == Format::q4_k ? cols / 32 : own && format == Format::q4_0 ? cols / 16 : cols / 8;
  w.trips = std::max(w.trips, std::ceil(lanes / 32));
}

DispatchWork mul_mv(const Reader& in, const std::string& suffix, bool tokens) {
  const auto a = in.args<MatmulArgs>();
  const Size grid = in.d().grid;
  const bool plain = suffix == "plain";
  Format format = plain ? Format::f32 : format_of_suffix(suffix);
  if (plain && in.constant(60)) format = in.constant(60) == 1 ? Format::f16 : Format::bf16;
  DispatchWork w;
  w.family = tokens ? "mul_mv_tokens" : "mul_mv";
  w.weights = a.rows * row_of(format, a.cols);
  w.activations = kF * a.tokens * (a.cols + double(a.rows));
  w.stored = kF * a.tokens * a.rows;
  const double rows = plain ? 1 : tokens || format != Format::q4_0 ? 2 : 4;
  if (plain) {
    w.loaded = 2.0 * double(grid.count()) * a.cols * (kF + info(format).bytes);
    w.operations = 2.0 * double(grid.count()) * a.cols * 2;
    w.trips = std::ceil(a.cols / 32.0);
  } else {
    add_dots(w, format, 2.0 * double(grid.count()), rows, a.cols, tokens ? a.tokens : 1, !tokens);
  }
  w.passes = grid.y;
  return w;
}

DispatchWork glu(const Reader& in, bool tokens) {
  const auto a = in.args<MatmulArgs>();
  DispatchWork w;
  w.family = tokens ? "glu_tokens" : "glu";
  for (const uint32_t c : {20u, 21u}) {
    w.weights += a.rows * row_of(in.format(c), a.cols);
    add_dots(w, in.format(c), 2.0 * double(in.d().grid.count()), 2, a.cols, tokens ? a.tokens : 1, !tokens);
  }
  w.activations = kF * a.tokens * (a.cols + double(a.rows));
  w.stored = kF * a.tokens * a.rows;
  w.shared = kF * double(in.d().grid.count()) * (tokens ? 32 + 4 * a.tokens : 8);
  w.passes = in.d().grid.y;
  return w;
}

DispatchWork qkv(const Reader& in, bool tokens) {
  const auto a = in.args<QkvArgs>();
  DispatchWork w;
  w.family = tokens ? "qkv_tokens" : "qkv";
  const uint32_t rows[3] = {a.rows_q, a.rows_k, a.rows_v};
  for (uint32_t i = 0; i < 3; ++i) {
    const double groups = std::ceil(rows[i] / 4.0) * in.d().grid.y;
    w.weights += rows[i] * row_of(in.format(23 + i), a.cols);
    add_dots(w, in.format(23 + i), 2 * groups, 2, a.cols, tokens ? a.tokens : 1, !tokens);
    w.stored += kF * a.tokens * rows[i];
    if (in.constant(26)) w.loaded += kF * rows[i] * a.tokens;
  }
  w.activations = kF * a.tokens * a.cols + w.stored;
  w.passes = in.d().grid.y;
  return w;
}

DispatchWork qkv_rope(const Reader& in, bool tokens) {
  const auto a = in.args<QkvRopeArgs>();
  DispatchWork w;
  w.family = tokens ? "qkv_rope_tokens" : "qkv_rope";
  const uint32_t heads[3] = {a.n_head, a.kv.n_head_kv, a.kv.n_head_kv};
  const uint32_t d[3] = {a.kv.d_head, a.kv.d_head, a.kv.d_value};
  const double simdgroups = in.d().threads.x / 32;
  for (uint32_t i = 0; i < 3; ++i) {
    const double rows = double(heads[i]) * d[i], turned = i < 2 ? a.n_rot : 0;
    w.weights += rows * row_of(in.format(23 + i), a.cols);
    add_dots(w, in.format(23 + i), heads[i] * std::ceil(d[i] / 2.0), 2, a.cols, tokens ? a.tokens : 1, !tokens);
    if (in.constant(26)) w.loaded += kF * rows * a.tokens;
    if (in.constant(27) && i < 2) w.loaded += kF * rows * a.tokens;
    w.loaded += kF * turned * heads[i] * a.tokens;
    const double element = i == 0 ? kF : in.cache_element(i == 1 ? 10 : 11);
    w.stored += rows * element * a.tokens;
    if (i > 0) w.uniform += 16.0 * 32 * heads[i] * a.tokens;
    w.shared += kF * rows * a.tokens * (2 + (i < 2 ? 2 + (in.constant(27) ? 1 : 0) : 0));
  }
  w.activations = kF * a.tokens * (a.cols + 2.0 * a.q_stride);
  w.trips = w.trips * std::ceil(std::max(d[0], d[2]) / (2 * simdgroups)) + 2;
  return w;
}

// ---- products of many tokens

uint32_t fragments_of(uint32_t tokens, uint32_t tile) {
  const uint32_t left = tokens - 32 * tile;
  return left > 40 ? 4 : (left + 7) / 8;
}

// Tiles of 64 rows; `eight`: bytes that a lane asks for to stage eight weights.
void add_tiles(DispatchWork& w, const MatmulArgs& a, Size grid, double eight, double decode, bool pieces) {
  double fragments = 0;
  for (uint32_t t = 0; t < grid.y; ++t) fragments += fragments_of(a.tokens, t);
  const double steps = a.cols / 32.0, column = grid.x * steps;
  w.loaded += column * (grid.y * 128.0 * 2 * eight + fragments * 8 * 32 * kF);
  w.stored += kF * a.tokens * a.rows;
  w.matrix += column * fragments * 4 * 8;
  w.shared += column * (grid.y * 64 * 32 * 2 + fragments * 8 * 32 * 2);  // staged
  w.shared += column * kTile * (grid.y * 4 * 8 + fragments * 4 * 4);     // loaded as matrices
  for (uint32_t t = 0; t < grid.y; ++t)  // sums that go to their places through threadgroup memory
    for (uint32_t i = 0; i < fragments_of(a.tokens, t); ++i) {
      const double tokens = std::min(8.0, double(a.tokens) - 32 * t - 8 * i), rows = a.rows % 64;
      if (pieces)
        w.shared += grid.x * 4 * 512.0 + 2 * a.rows * tokens * kF;
      else if (tokens < 8)
        w.shared += grid.x * 4 * 512.0 + a.rows * tokens * kF;
      else if (rows > 0)
        w.shared += 4 * 512.0 + rows * tokens * kF;
    }
  w.shared += grid.x * grid.y * (4 + 128) * kF;  // whether an activation is beyond half's range
  // A matrix is two elements a lane, to be loaded and to be found.
  w.operations += column * (grid.y * 64 * 32 * (decode + 1) + fragments * 8 * 32);
  w.operations += column * (grid.y * 4 * 8 + fragments * 4 * 4) * 2 * kSimdWidth;
  w.passes = grid.y;
  w.together = true;
  w.trips = steps;
}

DispatchWork mul_mm(const Reader& in, Format format) {
  const auto a = in.args<MatmulArgs>();
  DispatchWork w;
  w.family = "mul_mm";
  w.weights = a.rows * row_of(format, a.cols);
  w.activations = kF * a.tokens * (a.cols + double(a.rows));
  add_tiles(w, a, {in.d().grid.y, in.d().grid.x}, reading(format).eight, reading(format).decode, false);
  return w;
}

DispatchWork glu_mm(const Reader& in) {
  const auto a = in.args<MatmulArgs>();
  const Format gate = in.format(20), up = in.format(21);
  DispatchWork w;
  w.family = "glu_mm";
  w.weights = a.rows * (row_of(gate, a.cols) + row_of(up, a.cols));
  w.activations = kF * a.tokens * (a.cols + double(a.rows));
  add_tiles(w, a, {in.d().grid.y, in.d().grid.x}, (reading(gate).eight + reading(up).eight) / 2,
            (reading(gate).decode + reading(up).decode) / 2, true);
  return w;
}

// ---- attention

uint32_t blocks_of(const AttentionItem& item) { return (item.end - 1) / kKvPositions - item.first / kKvPositions + 1; }

DispatchWork attention_decode(const Reader& in, uint32_t d) {
  const auto a = in.args<AttentionArgs>();
  const uint32_t heads = std::max(1u, in.constant(13)), sets = heads == 8 ? 2 : 1, of_set = heads / sets;
  const uint32_t n = a.n_head / a.n_head_kv, parts = (n + heads - 1) / heads, simdgroups = in.d().threads.x / 32;
  const double k = in.cache_element(10), v = in.cache_element(11);
  const double groups = double(a.n_head_kv) * parts;
  const double fours = d > 128 ? 2 : 1, sides = d > 64 ? 1 : 2;
  DispatchWork w;
  w.family = "attention_decode";
  double most = 0;
  for (const AttentionItem& item : in.list<AttentionItem>(4)) {
    const double blocks = blocks_of(item), positions = item.end - item.first;
    // A lane takes a float4; for heads of 80 and 96 lanes past the head's end repeat others'.
    const double width = fours * 32 * 4 / sides;
    w.loaded += groups * (sets * blocks * double(kKvPositions) * d * k + sets * positions * width * v + heads * d * kF);
    w.cache += a.n_head_kv * positions * d * (k + v);
    w.stored += a.n_head * (d + (item.slot == kAttentionWhole ? 0 : 2)) * kF;
    w.activations += 2 * a.n_head * d * kF;
    w.operations += groups * heads * positions * d * 2;
    w.operations += groups * heads * blocks * 32 * (40 + 4 * fours);  // softmax
    w.shared += groups * heads * d * kF + groups * sets * blocks * of_set * (32.0 * d + 128);
    w.shared += groups * sets * blocks * of_set * 32 * (8 / sides) * fours * 16;
    w.shared += groups * heads * (simdgroups / sets + 1) * (d + 8) * kF;
    w.uniform += groups * (in.d().threads.x * 24.0 + sets * blocks * 32 * 12 + heads * d * 5.0);
    most = std::max(most, std::ceil(blocks / (double(simdgroups) / sets)));
    w.threadgroups += uint64_t(groups);
  }
  // A block: its place in the table, keys, values; then the sums of all SIMD-groups.
  w.trips = 3 + 3 * most;
  return w;
}

DispatchWork attention_any(const Reader& in) {
  const auto a = in.args<AttentionArgs>();
  const double k = in.cache_element(10), v = in.cache_element(11);
  DispatchWork w;
  w.family = "attention_any";
  for (const AttentionItem& item : in.list<AttentionItem>(4)) {
    const double blocks = blocks_of(item), positions = item.end - item.first;
    w.loaded += a.n_head * (blocks * 32 * a.d_head * (k + kF) + positions * a.d_value * v);
    w.cache += a.n_head_kv * positions * (a.d_head * k + a.d_value * v);
    w.stored += a.n_head * a.d_value * kF;
    w.activations += a.n_head * (a.d_head + a.d_value) * kF;
    w.operations += a.n_head * blocks * 32 * (a.d_head * 2.0 + a.d_value);
    w.shared += a.n_head * 4.0 * (2 * a.d_value + 8) * kF;
    w.trips = std::max(w.trips, std::ceil(blocks / 4) * (2 * a.d_head / 4.0 + 32));
    w.threadgroups += a.n_head;
  }
  return w;
}

DispatchWork attention_combine(const Reader& in) {
  const auto a = in.args<AttentionArgs>();
  DispatchWork w;
  w.family = "attention_combine";
  for (const AttentionCombineItem& item : in.list<AttentionCombineItem>(2)) {
    w.loaded += a.n_head * (double(item.n_splits) * a.d_value * kF + (64 + item.n_splits) * kF);
    w.stored += a.n_head * a.d_value * kF;
    w.uniform += a.n_head * 28.0 * kSimdWidth;
    w.operations += a.n_head * (double(item.n_splits) * (a.d_value + 32) + 640);
    w.trips = std::max(w.trips, 3 + item.n_splits / 4.0);  // loads of splits do not wait for one another
    w.threadgroups += a.n_head;
  }
  w.activations = w.loaded + w.stored;
  return w;
}

DispatchWork attention_prefill(const Reader& in, uint32_t d) {
  const auto a = in.args<AttentionArgs>();
  const double k = in.cache_element(10), v = in.cache_element(11);
  const uint32_t hidden = a.window ? a.window - 1 : UINT32_MAX;
  DispatchWork w;
  w.family = "attention_prefill";
  double most = 0;
  for (const AttentionItem& item : in.list<AttentionItem>(4)) {
    const double blocks = blocks_of(item), positions = item.end - item.first;
    double worked = 0;  // blocks by SIMD-groups that see something of them
    for (uint32_t b = item.first / kKvPositions; b * kKvPositions < item.end; ++b)
      for (uint32_t s = 0; 8 * s < item.n_rows && s < kPrefillSimdgroups; ++s) {
        const uint32_t first = item.position + 8 * s, last = first + 7;
        worked += b * kKvPositions <= last && (b + 1) * kKvPositions > first - std::min(first, hidden);
      }
    w.loaded += a.n_head * (positions * d * (k + v) + item.n_rows * d * kF);
    w.cache += a.n_head_kv * positions * d * (k + v);
    w.stored += a.n_head * double(item.n_rows) * d * kF;
    w.activations += 2.0 * a.n_head * item.n_rows * d * kF;
    w.matrix += a.n_head * worked * d;
    w.shared += a.n_head * (kPrefillRows * d * 2 * 2 + blocks * 2.0 * double(kKvPositions) * d * 2);
    w.shared += a.n_head * worked * (kTile * d + (d > 128 ? kTile * d / 8 : 0) + 2 * 1024 + 2 * 512);
    w.shared += a.n_head * double(kPrefillRows) * d * kF * 2;
    w.operations += a.n_head * worked * 32 * 8 * 12 + a.n_head * blocks * 2.0 * double(kKvPositions) * d * 1.5;
    w.operations += a.n_head * worked * d * 2 * kSimdWidth;  // matrices loaded
    w.uniform += a.n_head * in.d().threads.x * (24 + 20 * blocks + d / 2.0);
    most = std::max(most, blocks);
    w.threadgroups += a.n_head;
  }
  w.trips = 2 + 3 * most;
  return w;
}

// ---- rows and elements

DispatchWork elements(const char* family, double loaded, double stored, double operations) {
  DispatchWork w;
  w.family = family;
  w.loaded = loaded;
  w.stored = stored;
  w.activations = loaded + stored;
  w.operations = operations;
  w.trips = 2;
  return w;
}

DispatchWork rms_norm(const Reader& in, bool heads) {
  const auto a = in.args<RmsNormArgs>();
  const double n = double(a.group) * a.n_groups;
  const double loads = 1 + in.constant(0) + in.constant(1) + in.constant(2) + (in.constant(3) == 0);
  DispatchWork w =
      elements(heads ? "rms_norm_heads" : "rms_norm", kF * n * loads, kF * n * (1 + in.constant(1)), 6 * n);
  const double simdgroups = in.d().threads.x / 32.0;
  w.shared = heads ? 0 : kF * double(in.d().grid.count()) * simdgroups * (1 + simdgroups);
  w.trips = 3;  // x, the sum, the weights
  return w;
}

DispatchWork rms_norm_twice(const Reader& in) {
  const double n = double(in.args<NormTwiceArgs>().group) * in.d().grid.x;
  const double simdgroups = in.d().threads.x / 32.0;
  DispatchWork w = elements("rms_norm_twice", 6 * kF * n, 2 * kF * n, 10 * n);
  w.shared = 2 * kF * in.d().grid.x * simdgroups * (1 + simdgroups);
  w.trips = 5;
  return w;
}

// What an argument's range has; for kernels that read and write each word about once.
DispatchWork ranges(const Reader& in) {
  DispatchWork w = elements(in.d().pipeline->name().c_str(), 0, 0, 0);
  for (const Dispatch::Bound& bound : in.d().buffers)
    for (const Argument& a : in.d().pipeline->arguments())
      if (a.index == bound.index && a.kind == Argument::buffer) (a.written ? w.stored : w.loaded) += double(bound.size);
  w.activations = w.loaded + w.stored;
  w.operations = w.activations;
  return w;
}

DispatchWork of_elements(const Reader& in, const std::string& name) {
  const auto n = double(in.args<ElementArgs>().n);  // also of CopyArgs
  if (name == "map_elements") return elements("elements", kF * n, kF * n, 12 * n);
  if (name == "zip_elements") return elements("elements", 2 * kF * n, kF * n, 12 * n);
  if (name == "copy_words") return elements("rows", kF * n, kF * n, n);
  if (name == "zip_vector") {
    const auto a = in.args<RowVectorArgs>();
    const double all = double(a.width) * a.rows;
    return elements("elements", 2 * kF * all, kF * all, all);
  }
  if (name == "gather_rows") {
    const auto a = in.args<GatherRowsArgs>();
    const double all = double(a.width) * a.n_ids, threads = double(in.d().grid.x) * in.d().threads.x * a.n_ids;
    return elements("rows", kF * (all + threads), kF * all, all);
  }
  if (name == "rope" || name == "rope_qk") {
    const auto a = in.args<RopeArgs>();
    const double heads = double(a.n_head + (name == "rope_qk" ? a.n_head_kv : 0)) * in.d().grid.z;
    return elements("rope", kF * heads * (2.0 * a.n_rot + a.copied), kF * heads * (a.n_rot + a.copied),
                    3 * heads * a.n_rot);
  }
  if (name == "rope_table") {
    const auto a = in.args<RopeTableArgs>();
    const double pairs = a.n_rot / 2.0 * a.rows;
    return elements("rope", 12 * pairs, 8 * pairs, 80 * pairs);
  }
  if (name == "kv_store") {
    const auto a = in.args<KvStoreArgs>();
    const double rows = double(a.n_head_kv) * in.d().grid.y;
    DispatchWork w = elements("kv_store", kF * rows * (a.d_head + a.d_value),
                              rows * (a.d_head * in.cache_element(10) + a.d_value * in.cache_element(11)),
                              4 * rows * (a.d_head + a.d_value));
    w.uniform = 16 * 32 * 2 * rows;
    w.trips = 5;  // the row's sequence, its table, the block
    return w;
  }
  if (name == "argmax_parts") {
    const auto a = in.args<SampleArgs>();
    const double all = double(a.n_vocab) * in.d().grid.y, at_once = 4.0 * in.d().threads.x;
    double asked = 0;  // a thread reads four at a time, the last logit again where that reaches past it
    for (uint32_t first = 0; first < a.n_vocab; first += kSamplePart) {
      const double n = std::min<double>(kSamplePart, a.n_vocab - first), whole = std::floor(n / at_once);
      asked += whole * at_once + 4 * std::min<double>(n - whole * at_once, in.d().threads.x);
    }
    DispatchWork w = elements("sampling", kF * asked * in.d().grid.y, 8.0 * double(in.d().grid.count()), 3 * all);
    w.shared = double(in.d().grid.count()) * (in.d().threads.x / 32.0 * 8 + 272);
    w.trips = 2 + double(kSamplePart) / at_once;
    return w;
  }
  return ranges(in);
}

DispatchWork get_rows(const Reader& in, Format format) {
  const auto a = in.args<GetRowsArgs>();
  const double n = double(a.cols) * in.d().grid.y;
  DispatchWork w = elements("get_rows", n / 8 * (reading(format).eight + kF), kF * n, n * (reading(format).decode + 1));
  w.activations = kF * n;
  w.weights = row_of(format, n);
  return w;
}

DispatchWork kernel_work(const Reader& in, const std::string& name) {
  const auto rest = [&](std::string_view prefix) { return name.substr(prefix.size()); };
  const auto head = [&](std::string_view prefix) { return uint32_t(std::stoul(rest(prefix))); };
  if (name.starts_with("mul_mv_tokens_")) return mul_mv(in, rest("mul_mv_tokens_"), true);
  if (name.starts_with("mul_mv_")) return mul_mv(in, rest("mul_mv_"), false);
  if (name.starts_with("mul_mm_")) return mul_mm(in, format_of_suffix(rest("mul_mm_")));
  if (name == "glu_mm") return glu_mm(in);
  if (name == "glu" || name == "glu_tokens") return glu(in, name != "glu");
  if (name == "qkv" || name == "qkv_tokens") return qkv(in, name != "qkv");
  if (name == "qkv_rope" || name == "qkv_rope_tokens") return qkv_rope(in, name != "qkv_rope");
  if (name == "attention_any") return attention_any(in);
  if (name == "attention_combine") return attention_combine(in);
  if (name.starts_with("attention_decode_")) return attention_decode(in, head("attention_decode_"));
  if (name.starts_with("attention_prefill_")) return attention_prefill(in, head("attention_prefill_"));
  if (name == "rms_norm" || name == "rms_norm_heads") return rms_norm(in, name != "rms_norm");
  if (name == "rms_norm_twice") return rms_norm_twice(in);
  if (name.starts_with("get_rows_") && name != "get_rows_plain")
    return get_rows(in, format_of_suffix(rest("get_rows_")));
  return of_elements(in, name);
}

}  // namespace

DispatchWork work_of(const Dispatch& dispatch, const ConstantsOf& constants) {
  DispatchWork w = kernel_work(Reader(dispatch, constants), dispatch.pipeline->name());
  if (w.threadgroups == 0) w.threadgroups = dispatch.grid.count();
  w.threads = uint32_t(dispatch.threads.count());
  for (const uint32_t bytes : dispatch.threadgroup_bytes) w.threadgroup_bytes += bytes;
  return w;
}

}  // namespace argent::metal
