// Attention of each ISA against plain softmax in double, over caches whose unused places are poison: slots that no
// position filled hold NaN, and blocks that no row sees have no table entry.
#include <gtest/gtest.h>

#include <bit>
#include <memory>

#include "backends/cpu/vector.h"
#include "backends_cpu/matmul_cases.h"

namespace argent::cpu {
namespace {

// Scores are sums of rounded products; with d_head of 256 and scores of a few units the exponentials keep 2e-6.
constexpr double kTolerance = 4e-6;
// Where K is q8_0, queries are rounded to 1/32767 of their group's largest: scores keep 1e-5 or so.
constexpr double kQueryTolerance = 4e-5;

struct Shape {
  uint32_t n_head_kv = 2, n_group = 3, d_head = 64, d_value = 64, window = 0;
  float scale = 0.125f, softcap = 0, magnitude = 1;
  KvType k_type = KvType::f16, v_type = KvType::f16;
  std::vector<int32_t> positions;  // of the rows, ascending
};

std::string name(const Shape& s) {
  std::string text = "group " + std::to_string(s.n_group) + " d " + std::to_string(s.d_head) + '/' +
                     std::to_string(s.d_value) + " window " + std::to_string(s.window) + " softcap " +
                     std::to_string(s.softcap) + " rows";
  for (const int32_t p : s.positions) text += ' ' + std::to_string(p);
  return text;
}

// Element `at` of a head's part of a block, in units of the type.
float read(const uint8_t* part, uint64_t at, KvType type) {
  if (type == KvType::f32) return reinterpret_cast<const float*>(part)[at];
  const uint16_t bits = reinterpret_cast<const uint16_t*>(part)[at];
  return type == KvType::f16 ? half_to_float(bits) : bf16_to_float(bits);
}

// Element d of head h of a position's key or value (vector.h draws the layouts).
float read_k(const KvLayer& l, int32_t block, uint32_t h, uint32_t slot, uint32_t d) {
  const uint8_t* part = l.k + uint64_t(block) * l.k_stride + h * kv_bytes_of(l.k_type, kKvBlockTokens * l.d_head);
  if (l.k_type != KvType::q8_0) return read(part, d * kKvBlockTokens + slot, l.k_type);
  const int8_t q = int8_t(part[(d / 2 * kKvBlockTokens + slot) * 2 + d % 2]);
  return q * read(part + l.d_head * kKvBlockTokens, d / kKvGroup * kKvBlockTokens + slot, KvType::f16);
}
float read_v(const KvLayer& l, int32_t block, uint32_t h, uint32_t slot, uint32_t d) {
  const uint8_t* part = l.v + uint64_t(block) * l.v_stride + h * kv_bytes_of(l.v_type, kKvBlockTokens * l.d_value);
  if (l.v_type != KvType::q8_0) return read(part, uint64_t(slot) * l.d_value + d, l.v_type);
  const int8_t q = int8_t(part[slot * l.d_value + d]);
  return q * read(part + l.d_value * kKvBlockTokens, d / kKvGroup * kKvBlockTokens + slot, KvType::f16);
}

struct AttentionCase {
  explicit AttentionCase(Shape shape) : s(std::move(shape)) {
    const uint32_t n_keys = uint32_t(s.positions.back()) + 1, n_blocks = (n_keys + kKvBlockTokens - 1) / kKvBlockTokens;
    // The pool's blocks are handed out backwards, with gaps.
    table = std::make_unique<Guarded<int32_t>>(n_blocks);  // 0xff: -1
    const uint32_t in_pool = 2 * n_blocks + 1;
    // Other layers lie between the blocks.
    const uint64_t tokens = kKvBlockTokens * s.n_head_kv;
    const uint64_t k_stride = kv_bytes_of(s.k_type, tokens * s.d_head) + 192;
    const uint64_t v_stride = kv_bytes_of(s.v_type, tokens * s.d_value) + 64;
    k = std::make_unique<Guarded<uint8_t>>(in_pool * k_stride - 192);  // 0xff: NaN
    v = std::make_unique<Guarded<uint8_t>>(in_pool * v_stride - 64);
    layer = {k->data(), v->data(), s.k_type, s.v_type, s.n_head_kv, s.d_head, s.d_value, k_stride, v_stride};
    std::vector<bool> visible(n_keys);
    for (const int32_t p : s.positions)
      for (int32_t j = p; j >= 0 && (!s.window || p - j < int32_t(s.window)); --j) visible[j] = true;
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    std::vector<float> key(s.n_head_kv * s.d_head), value(s.n_head_kv * s.d_value);
    for (uint32_t j = 0; j < n_keys; ++j) {
      for (float& x : key) x = normal(random) * s.magnitude;
      for (float& x : value) x = normal(random);
      if (!visible[j]) continue;
      const int32_t block = int32_t(2 * (n_blocks - 1 - j / kKvBlockTokens) + 1);
      block_of(j) = block;
      vector_kernels(Isa::baseline).kv_store(layer, block, j % kKvBlockTokens, key.data(), value.data());
    }
    q = random_floats(s.positions.size() * s.n_head_kv * s.n_group * s.d_head, 2);
    for (float& x : q) x *= s.magnitude;
  }

  int32_t& block_of(uint32_t position) const { return (*table)[position / kKvBlockTokens]; }
  uint64_t states_floats() const { return s.positions.size() * s.n_group * attention_state_floats(s.d_value); }
  const float* query(uint32_t row, uint32_t head_kv) const {
    return q.data() + (uint64_t(row) * s.n_head_kv + head_kv) * s.n_group * s.d_head;
  }

  // Rows [begin, end) in one tile; splits [split_begin, split_end) into states.
  void attend(Isa isa, uint32_t head_kv, uint32_t begin, uint32_t end, uint32_t split_begin, uint32_t split_end,
              float* states) const {
    Guarded<uint8_t> scratch(attention_scratch(s.n_group, s.d_head, s.d_value));
    const float* rows[kAttentionRows];
    for (uint32_t r = begin; r < end; ++r) rows[r - begin] = query(r, head_kv);
    const AttentionTile tile = {&layer,  table->data(), head_kv,     s.n_group, s.window,
                                s.scale, s.softcap,     end - begin, rows,      s.positions.data() + begin};
    vector_kernels(isa).attention(tile, split_begin, split_end, states, scratch.data());
  }

  uint32_t splits() const { return uint32_t(s.positions.back()) / kSplitKeys + 1; }

  // [row][head of the group][d_value]; rows in tiles of `tile`, splits in calls of `at_once`, each call in a state of
  // its own that is merged, if `merged`.
  std::vector<float> run(Isa isa, uint32_t head_kv, uint32_t tile = kAttentionRows, uint32_t at_once = 1u << 20,
                         bool merged = false) const {
    const VectorKernels& kernels = vector_kernels(isa);
    const uint32_t n_rows = uint32_t(s.positions.size());
    const uint64_t state = attention_state_floats(s.d_value);
    Guarded<float> states(states_floats()), part(states_floats());
    kernels.attention_begin(states.data(), n_rows * s.n_group, s.d_value);
    for (uint32_t row = 0; row < n_rows; row += tile) {
      const uint32_t end = std::min(row + tile, n_rows), n_states = (end - row) * s.n_group;
      float* mine = states.data() + row * s.n_group * state;
      for (uint64_t first = 0; first < splits(); first += at_once) {
        const uint32_t last = uint32_t(std::min<uint64_t>(first + at_once, splits()));
        if (!merged) {
          attend(isa, head_kv, row, end, uint32_t(first), last, mine);
          continue;
        }
        kernels.attention_begin(part.data(), n_states, s.d_value);
        attend(isa, head_kv, row, end, uint32_t(first), last, part.data());
        kernels.attention_merge(mine, part.data(), n_states, s.d_value);
      }
    }
    Guarded<float> out(n_rows * s.n_group * s.d_value);
    for (uint32_t i = 0; i < n_rows * s.n_group; ++i)
      kernels.attention_end(states.data() + i * state, out.data() + uint64_t(i) * s.d_value, s.d_value);
    return {out.data(), out.data() + n_rows * s.n_group * s.d_value};
  }

  std::vector<double> reference(uint32_t head_kv) const {
    std::vector<double> out;
    for (uint32_t r = 0; r < s.positions.size(); ++r)
      for (uint32_t g = 0; g < s.n_group; ++g) {
        const int32_t p = s.positions[r], first = s.window && p >= int32_t(s.window) ? p - int32_t(s.window) + 1 : 0;
        std::vector<double> weights;
        double best = -INFINITY;
        for (int32_t j = first; j <= p; ++j) {
          double score = 0;
          for (uint32_t d = 0; d < s.d_head; ++d)
            score += double(query(r, head_kv)[g * s.d_head + d]) *
                     read_k(layer, block_of(j), head_kv, j % kKvBlockTokens, d);
          score *= s.scale;
          if (s.softcap != 0) score = s.softcap * std::tanh(score / s.softcap);
          weights.push_back(score);
          best = std::max(best, score);
        }
        double sum = 0;
        for (double& w : weights) sum += w = std::exp(w - best);
        const size_t start = out.size();
        out.resize(start + s.d_value);
        for (int32_t j = first; j <= p; ++j) {
          for (uint32_t d = 0; d < s.d_value; ++d)
            out[start + d] += weights[j - first] / sum * read_v(layer, block_of(j), head_kv, j % kKvBlockTokens, d);
        }
      }
    return out;
  }

  Shape s;
  std::unique_ptr<Guarded<uint8_t>> k, v;
  KvLayer layer;
  std::unique_ptr<Guarded<int32_t>> table;
  std::vector<float> q;
};

void expect_same(const std::vector<float>& a, const std::vector<float>& b, const std::string& what) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i)
    ASSERT_TRUE(same(a[i], b[i])) << what << " at " << i << ": " << a[i] << " and " << b[i];
}

// Every ISA against the reference; rows one by one, splits one by one and merged, and ISAs with FMA give the same bits.
void check(const Shape& shape, double tolerance = kTolerance) {
  const AttentionCase c(shape);
  const uint32_t head_kv = shape.n_head_kv - 1;
  const std::vector<double> want = c.reference(head_kv);
  std::vector<float> fused;
  for (const Isa isa : supported_isas()) {
    const std::string what = name(shape) + ' ' + isa_name(isa);
    const std::vector<float> got = c.run(isa, head_kv);
    for (size_t i = 0; i < want.size(); ++i) ASSERT_NEAR(got[i], want[i], tolerance) << what << " at " << i;
    expect_same(c.run(isa, head_kv, 1), got, what + " row by row");
    expect_same(c.run(isa, head_kv, 3, 1), got, what + " in threes, split by split");
    expect_same(c.run(isa, head_kv, kAttentionRows, 1, true), got, what + " merged");
    if (has_fma(isa) && fused.empty()) fused = got;
    if (has_fma(isa)) expect_same(got, fused, what + " beside the other ISA");
  }
}

std::vector<int32_t> rows_up_to(int32_t last, uint32_t n) {
  std::vector<int32_t> positions;
  for (int32_t p = std::max(0, last - int32_t(n) + 1); p <= last; ++p) positions.push_back(p);
  return positions;
}

TEST(Attention, PositionsAndWindows) {
  for (const uint32_t window : {0u, 1u, 5u, 16u, 32u, 33u, 2048u})
    for (const int32_t last : {0, 1, 15, 16, 31, 32, 33, 255, 256, 257, 270, 1000})
      for (const uint32_t n : {1u, 16u}) {
        Shape s;
        s.window = window;
        s.positions = rows_up_to(last, n);
        check(s);
      }
}

TEST(Attention, GroupsAndWidths) {
  struct Width {
    uint32_t d_head, d_value;
  };
  for (const uint32_t group : {1u, 2u, 3u, 4u, 5u, 6u, 7u, 8u, 9u, 16u, 32u})
    for (const Width w : {Width{64, 64}, {80, 80}, {65, 47}}) {
      Shape s;
      s.n_head_kv = group % 2 + 1;
      s.n_group = group;
      s.d_head = w.d_head;
      s.d_value = w.d_value;
      s.positions = rows_up_to(290, 5);
      check(s);
    }
  for (const Width w : {Width{1, 1}, {2, 3}, {96, 96}, {128, 128}, {192, 128}, {256, 256}, {33, 17}})
    for (const KvType k_type : {KvType::f16, KvType::bf16, KvType::f32, KvType::q8_0})
      for (const KvType v_type : {KvType::f16, KvType::bf16, KvType::f32, KvType::q8_0}) {
        if ((k_type == KvType::q8_0 && w.d_head % kKvGroup) || (v_type == KvType::q8_0 && w.d_value % kKvGroup))
          continue;
        Shape s;
        s.n_head_kv = 1;
        s.d_head = w.d_head;
        s.d_value = w.d_value;
        s.scale = 1 / std::sqrt(float(w.d_head));
        s.k_type = k_type;
        s.v_type = v_type;
        s.positions = rows_up_to(261, 8);
        check(s, k_type == KvType::q8_0 ? kQueryTolerance : kTolerance);
      }
}

TEST(Attention, PositionsAndWindowsOfQ8) {
  for (const uint32_t window : {0u, 1u, 33u, 300u})
    for (const int32_t last : {0, 1, 31, 32, 33, 255, 256, 257, 600})
      for (const uint32_t group : {1u, 3u, 7u}) {
        Shape s;
        s.window = window;
        s.n_group = group;
        s.k_type = s.v_type = KvType::q8_0;
        s.positions = rows_up_to(last, 9);
        check(s, kQueryTolerance);
      }
}

// Rows that want logits need not be neighbours.
TEST(Attention, RowsApart) {
  for (const uint32_t window : {0u, 16u, 300u}) {
    Shape s;
    s.window = window;
    s.positions = {0, 3, 31, 32, 100, 255, 256, 400, 401, 700};
    check(s);
  }
}

TEST(Attention, Softcap) {
  for (const float softcap : {1.0f, 30.0f, 50.0f}) {
    Shape s;
    s.softcap = softcap;
    s.magnitude = 3;
    s.positions = rows_up_to(300, 16);
    check(s, 2e-5);
  }
}

// Scores up to 1e4: all weight is on one key, or on few whose scores' rounding (1e4 * 2^-24 * 8) the exponential shows.
TEST(Attention, ExtremeScores) {
  Shape s;
  s.magnitude = 40;
  s.k_type = KvType::f32;
  s.positions = rows_up_to(600, 16);
  check(s, 2e-2);
  s.magnitude = 0;
  check(s);
}

// Keys whose scores are -infinity have no weight; if all are, the row is empty and gives 0.
TEST(Attention, NoWeight) {
  Shape s;
  s.positions = {40};
  AttentionCase c(s);
  for (float& x : c.q) x = 1;
  const uint16_t infinite = 0xfc00;
  uint16_t* keys = reinterpret_cast<uint16_t*>(c.layer.k);
  const auto set = [&](int32_t j) {
    for (uint32_t d = 0; d < s.d_head; ++d)
      keys[(uint64_t(c.block_of(j)) * s.n_head_kv * s.d_head + d) * kKvBlockTokens + j % kKvBlockTokens] = infinite;
  };
  for (int32_t j = 0; j < 40; ++j) set(j);
  for (const Isa isa : supported_isas()) {
    const std::vector<float> out = c.run(isa, 0);
    for (uint32_t d = 0; d < s.d_value; ++d) EXPECT_EQ(out[d], read_v(c.layer, c.block_of(40), 0, 8, d));
  }
  set(40);
  for (const Isa isa : supported_isas())
    for (const float x : c.run(isa, 0)) EXPECT_EQ(x, 0);
}

// NaN in a query stays in its heads.
void check_nan(KvType type) {
  Shape s;
  s.k_type = s.v_type = type;
  s.positions = rows_up_to(300, 4);
  AttentionCase c(s);
  for (const Isa isa : supported_isas()) {
    const std::vector<float> clean = c.run(isa, 0);
    AttentionCase dirty(s);
    dirty.q[(uint64_t(2) * s.n_head_kv * s.n_group + 1) * s.d_head + 7] = NAN;  // row 2, head 1 of KV head 0
    const std::vector<float> out = dirty.run(isa, 0);
    for (size_t i = 0; i < out.size(); ++i) {
      const bool hit = i / s.d_value == 2 * s.n_group + 1;
      EXPECT_TRUE(hit ? std::isnan(out[i]) : same(out[i], clean[i])) << i;
    }
  }
}

TEST(Attention, NanStaysInItsHead) {
  check_nan(KvType::f16);
  check_nan(KvType::q8_0);
}

TEST(Attention, EmptyStates) {
  for (const Isa isa : supported_isas()) {
    const VectorKernels& kernels = vector_kernels(isa);
    const uint64_t n = attention_state_floats(47);
    Guarded<float> a(2 * n), b(2 * n), out(47);
    kernels.attention_begin(a.data(), 2, 47);
    kernels.attention_begin(b.data(), 2, 47);
    kernels.attention_merge(a.data(), b.data(), 2, 47);
    for (int i = 0; i < 2; ++i) {
      kernels.attention_end(a.data() + i * n, out.data(), 47);
      for (int d = 0; d < 47; ++d) EXPECT_EQ(out[d], 0);
    }
  }
}

}  // namespace
}  // namespace argent::cpu
