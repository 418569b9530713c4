// Tiny models around one op, with random weights, and steps that run them.
#pragma once

#include <cmath>
#include <deque>
#include <random>

#include "backends/backend.h"
#include "graph/builder.h"

namespace argent::ops_test {

// n elements of a format whose decoded values are of everyday size: random blocks, drawn again until they are.
inline std::vector<uint8_t> random_row(Format format, uint32_t n, std::mt19937& random) {
  const FormatInfo& f = info(format);
  std::vector<uint8_t> row(row_bytes(format, n));
  if (f.block == 1) {
    for (uint32_t i = 0; i < n; ++i) {
      const float x = std::normal_distribution<float>()(random);
      const uint32_t bits = std::bit_cast<uint32_t>(x);
      const uint16_t half = format == Format::f16 ? uint16_t((bits >> 16 & 0x8000) | ((bits >> 13 & 0x3ff) | 0x3800))
                                                  : uint16_t(bits >> 16);
      std::memcpy(&row[size_t(i) * f.bytes], format == Format::f32 ? static_cast<const void*>(&x) : &half, f.bytes);
    }
    return row;
  }
  std::vector<float> values(f.block);
  for (uint32_t b = 0; b < n / f.block; ++b)
    for (bool good = false; !good;) {
      for (uint32_t i = 0; i < f.bytes; ++i) row[size_t(b) * f.bytes + i] = uint8_t(random());
      decode_row(format, &row[size_t(b) * f.bytes], values.data(), f.block);
      float most = 0;
      bool finite = true;
      for (float v : values) finite = finite && std::isfinite(v), most = std::max(most, std::fabs(v));
      good = finite && most > 0.05f && most < 8;
    }
  return row;
}

// Makes operands in a Builder; owns the bytes of the weights.
class Maker {
 public:
  explicit Maker(uint32_t seed) : random_(seed) {}

  Builder& builder() { return builder_; }
  static constexpr uint32_t kVocab = 64;
  uint32_t n_vocab() const { return n_vocab_; }

  ValueId tokens() { return builder_.input(Input::tokens); }
  ValueId positions() { return builder_.input(Input::positions); }

  ValueId matrix(Format format, uint32_t n_rows, uint32_t width) {
    std::vector<uint8_t> bytes;
    for (uint32_t r = 0; r < n_rows; ++r) {
      const std::vector<uint8_t> row = random_row(format, width, random_);
      bytes.insert(bytes.end(), row.begin(), row.end());
    }
    return weight(format, n_rows, width, std::move(bytes));
  }
  ValueId vector(uint32_t width, bool positive = false) {
    std::vector<float> x(width);
    for (float& v : x) v = positive ? 1 + std::fabs(normal()) : normal();
    return floats(1, width, x);
  }
  // Activations [tokens][width]: rows of a table, by token. Token 0's are zeros, token 1's have an outlier.
  ValueId rows(uint32_t width, float spread = 1) {
    std::vector<float> x(uint64_t(kVocab) * width);
    for (size_t i = 0; i < x.size(); ++i) x[i] = i < width ? 0.0f : normal() * spread;
    x[width + width / 2] = 50 * spread;
    return builder_.embed(tokens(), floats(kVocab, width, x));
  }
  // The same value whenever it is asked for.
  ValueId same(uint32_t width) {
    if (same_ == kNone) same_ = rows(width);
    return same_;
  }
  ValueId rope(uint32_t n_head, uint32_t d_head, const Attrs& attrs) {
    const ValueId x = rows(n_head * d_head);
    return builder_.rope(x, builder_.rope_table(positions(), kNone, attrs), n_head, attrs);
  }
  ValueId attention(uint32_t n_head, KvSpec spec, float scale, float softcap = 0) {
    spec.layer = n_layers_++;
    const ValueId state = builder_.kv(spec);
    const ValueId q = rows(n_head * spec.d_head), k = rows(spec.n_head_kv * spec.d_head),
                  v = rows(spec.n_head_kv * spec.d_value);
    builder_.kv_store(k, v, state);
    return builder_.attention(q, state, n_head, scale, softcap);
  }
  struct Projections {
    struct {
      uint32_t n_head, n_head_kv, d_head;
    } heads;
    uint32_t n_rot = 0;
    bool interleaved = false, norms = false, biases = false;
    uint32_t d_value = 0;  // 0: as d_head
  };
  // q; matrices of different formats.
  ValueId qkv_store(const Projections& p) {
    const auto [n_head, n_head_kv, d] = p.heads;
    const uint32_t d_value = p.d_value ? p.d_value : d, q = n_head * d, kv = n_head_kv * d, v = n_head_kv * d_value;
    const ValueId x = rows(256), state = builder_.kv({n_layers_++, n_head_kv, d, d_value, 0});
    const ValueId wq = matrix(Format::q4_k, q, 256), wk = matrix(Format::q8_0, kv, 256),
                  wv = matrix(Format::q6_k, v, 256);
    std::vector<ValueId> inputs = {x, wq, wk, wv, state};
    if (p.n_rot) inputs.push_back(builder_.rope_table(positions(), kNone, {.n_rot = p.n_rot}));
    if (p.biases)
      for (const uint32_t width : {q, kv, v}) inputs.push_back(vector(width));
    if (p.norms)
      for (int i = 0; i < 2; ++i) inputs.push_back(vector(d));
    Attrs attrs{.eps = 1e-6f, .n_head = n_head, .n_head_kv = n_head_kv, .d_head = d, .d_value = d_value};
    attrs.n_rot = p.n_rot, attrs.interleaved = p.interleaved;
    last_state_ = state;
    return builder_.add_op(Op::qkv_store, std::move(inputs), attrs);
  }
  // What attention makes of the q and the cache of such an op; scores near 1 whether heads are normalised or not.
  ValueId qkv_stored(const Projections& p) {
    const ValueId q = qkv_store(p);
    return builder_.attention(q, last_state_, p.heads.n_head, p.norms ? 0.1f : 1e-4f);
  }
  // Layers of different windows, so different block tables.
  ValueId two_groups() {
    const ValueId full = attention(2, {.n_head_kv = 1, .d_head = 64, .d_value = 64}, 0.125f);
    const ValueId sliding = attention(2, {.n_head_kv = 1, .d_head = 64, .d_value = 64, .window = 7}, 0.125f);
    const ValueId again = attention(2, {.n_head_kv = 1, .d_head = 64, .d_value = 64}, 0.125f);
    return builder_.add(builder_.add(full, sliding), again);
  }
  // Logits with ties, masked tokens, and rows without a result: token 1 holds a NaN, 2 a +inf, 3 nothing but -inf.
  ValueId logits(uint32_t width) {
    n_vocab_ = width <= 1000 ? std::max(width, 8u) : kVocab;  // narrow ones can be fed back as tokens
    std::vector<float> x(uint64_t(n_vocab_) * width);
    for (size_t i = 0; i < x.size(); ++i) {
      const uint32_t token = uint32_t(i / width);
      x[i] = 3 * normal();
      if (token % 4 == 0) x[i] = std::round(x[i]);
      if ((token == 4 && i % 3) || token == 3) x[i] = -INFINITY;
      if (token == 5) x[i] = 1;
    }
    x[width + width / 2] = NAN;
    x[3 * uint64_t(width) - 1] = INFINITY;
    return builder_.embed(tokens(), floats(n_vocab_, width, x));
  }

 private:
  float normal() { return std::normal_distribution<float>()(random_); }
  ValueId floats(uint32_t n_rows, uint32_t width, const std::vector<float>& x) {
    std::vector<uint8_t> bytes(x.size() * sizeof(float));
    std::memcpy(bytes.data(), x.data(), bytes.size());
    return weight(Format::f32, n_rows, width, std::move(bytes));
  }
  ValueId weight(Format format, uint32_t n_rows, uint32_t width, std::vector<uint8_t> bytes) {
    bytes_.push_back(std::move(bytes));
    return builder_.weight(fmt::format("w{}", bytes_.size()), format, n_rows, width, bytes_.back().data());
  }

  Builder builder_;
  std::mt19937 random_;
  std::deque<std::vector<uint8_t>> bytes_;
  uint32_t n_vocab_ = kVocab;
  uint32_t n_layers_ = 0;
  ValueId same_ = kNone, last_state_ = kNone;
};

enum class Outputs { all, some, none };

struct StepSpec {
  struct Part {
    uint32_t sequence, n_rows;
  };
  std::vector<Part> parts;
  Outputs outputs = Outputs::all;
  bool feed_back = false;  // tokens are what the sequences sampled in the step before
};
using Script = std::vector<StepSpec>;

// One sequence, the numbers of rows at which tiles and vectors end.
inline const Script rows = {{{{0, 1}}, Outputs::all},   {{{0, 2}}, Outputs::some},  {{{0, 3}}, Outputs::all},
                            {{{0, 31}}, Outputs::some}, {{{0, 32}}, Outputs::all},  {{{0, 33}}, Outputs::all},
                            {{{0, 33}}, Outputs::some}, {{{0, 17}}, Outputs::none}, {{{0, 1}}, Outputs::some}};
inline const Script few = {{{{0, 1}}, Outputs::all}, {{{0, 19}}, Outputs::some}, {{{0, 5}}, Outputs::all}};
// Several sequences: prefill, decode, uneven chunks, one that comes late, one that rests.
inline const Script chat = {{{{0, 5}}, Outputs::all},
                            {{{0, 1}}, Outputs::some},
                            {{{0, 33}, {1, 7}}, Outputs::some},
                            {{{1, 1}, {0, 1}, {2, 40}}, Outputs::all},
                            {{{2, 1}, {1, 31}}, Outputs::some},
                            {{{0, 2}, {1, 1}, {2, 1}, {3, 3}}, Outputs::all},
                            {{{0, 1}, {1, 1}, {2, 1}, {3, 1}}, Outputs::some},
                            {{{1, 64}}, Outputs::none},
                            {{{1, 1}}, Outputs::some}};
inline const Script longer = {
    {{{0, 255}}, Outputs::some}, {{{0, 1}}, Outputs::some},           {{{0, 1}}, Outputs::all},
    {{{0, 1}}, Outputs::all},    {{{0, 300}, {1, 3}}, Outputs::some}, {{{1, 1}, {0, 1}}, Outputs::all}};
inline const Script draws = {{{{0, 33}}, Outputs::all},
                             {{{0, 33}, {1, 31}}, Outputs::some},
                             {{{1, 1}, {0, 1}}, Outputs::all},
                             {{{0, 1}, {2, 60}}, Outputs::some},
                             {{{2, 2}, {1, 2}}, Outputs::all}};

}  // namespace argent::ops_test
