#include "metal/attention_bench.h"

#include <fmt/format.h>

#include <algorithm>

#include "backends/metal/attention_items.h"
#include "base/half.h"

namespace argent::metal {

namespace {

uint32_t first_visible(uint32_t position, uint32_t window) {
  return window && position >= window ? position - window + 1 : 0;
}

// K or V of all blocks of a pool, and what it means.
struct Cached {
  KvType type;
  uint32_t d;
  size_t offset, elements;     // in a block
  std::vector<double> values;  // [position of the pool][head][d]
};

// Stores a head of a position; the values become what the type keeps of them.
void store(Numbers& numbers, uint8_t* block, Cached& cached, uint32_t at, double* to, float size, bool negative) {
  uint8_t* base = block + cached.offset;
  const float scale = half_to_float(float_to_half((1.5f + 0.5f * numbers.next()) / 127));
  for (uint32_t i = 0; i < cached.d; i++) {
    float x = size * numbers.next();
    if (negative) x = -std::fabs(x);
    uint16_t bits = 0;
    switch (cached.type) {
      case KvType::f16:
        bits = float_to_half(x), x = half_to_float(bits);
        std::memcpy(base + 2 * (at + i), &bits, 2);
        break;
      case KvType::bf16:
        bits = float_to_bf16(x), x = bf16_to_float(bits);
        std::memcpy(base + 2 * (at + i), &bits, 2);
        break;
      case KvType::f32:
        std::memcpy(base + 4 * (at + i), &x, 4);
        break;
      case KvType::q8_0:
        bits = float_to_half(scale);
        base[at + i] = uint8_t(int8_t(127 * x));
        std::memcpy(base + cached.elements + (at + i) / kKvGroup * 2, &bits, 2);
        x = scale * int8_t(127 * x);
        break;
    }
    to[i] = x;
  }
}

// A step and its cache. Blocks are shuffled; what no row sees is filled with NaN, also in blocks that rows see a part
// of; table entries before the window are -1.
struct Made {
  std::vector<KvSequence> sequences;
  std::vector<int32_t> tables;
  std::vector<float> q;
  std::vector<uint8_t> pool;
  Cached k, v;
  size_t block_bytes = 0;
  uint32_t rows = 0;
};

Made make(const AttentionShape& shape) {
  Made made;
  Numbers numbers(shape.d_head * 101 + shape.n_head + shape.window);
  uint32_t n_blocks = 1;
  for (const auto& s : shape.sequences) {
    made.sequences.push_back({made.rows, s.n_rows, s.length, uint32_t(made.tables.size())});
    made.rows += s.n_rows;
    const uint32_t first = first_visible(s.length, shape.window) / kKvPositions;
    for (uint32_t b = 0; b * kKvPositions < s.length + s.n_rows; b++)
      made.tables.push_back(b < first ? -1 : int32_t(n_blocks++));
  }
  std::vector<int32_t> shuffled(n_blocks);
  for (uint32_t b = 0; b < n_blocks; b++) shuffled[b] = int32_t(b);
  for (uint32_t b = n_blocks - 1; b > 0; b--) std::swap(shuffled[b], shuffled[numbers.bits() % (b + 1)]);
  for (int32_t& b : made.tables) b = b < 0 ? b : shuffled[b];

  // A gap, K, a gap, V: the last block ends with its values.
  const auto place = [&](KvType type, uint32_t d) {
    const size_t elements = size_t(shape.n_head_kv) * kKvPositions * d;
    Cached cached{type, d, made.block_bytes + 48, elements, std::vector<double>(n_blocks * elements)};
    made.block_bytes += 48 + kv_bytes_of(type, elements);
    return cached;
  };
  made.k = place(shape.k, shape.d_head);
  made.v = place(shape.v, shape.d_value);
  made.pool.assign(n_blocks * made.block_bytes, 0xff);
  made.q = numbers.floats(size_t(made.rows) * shape.n_head * shape.d_head, shape.size);
  for (float& x : made.q) x = shape.opposite ? std::fabs(x) : x;
  for (const KvSequence& s : made.sequences) {
    for (uint32_t p = first_visible(s.length, shape.window); p < s.length + s.n_rows; p++) {
      const uint32_t block = uint32_t(made.tables[s.table + p / kKvPositions]);
      for (uint32_t h = 0; h < shape.n_head_kv; h++) {
        const auto one = [&](Cached& c, bool negative) {
          const uint32_t at = (h * kKvPositions + p % kKvPositions) * c.d;
          store(numbers, &made.pool[block * made.block_bytes], c, at, &c.values[block * c.elements + at], 1, negative);
        };
        one(made.k, shape.opposite);
        one(made.v, false);
      }
    }
  }
  return made;
}

// A row and head in double, with what each element may be off.
//
// Kernels of floats: a score is a sum of d products, off by some 2^-23 of the sum of their sizes, which is a relative
// error of its weight; the weighted sum and exp() add as much again. Prefill: queries, K, weights and V are rounded to
// half, each by up to 2^-11 of itself, independently: errors of sums grow as the root of the sum of squares. Weights
// below 2^-14 are off by up to 2^-25.
struct Expected {
  std::vector<double> want, allowed;
};

Expected expect(const AttentionShape& shape, const Made& made, const KvSequence& s, uint32_t row, uint32_t head,
                bool halves) {
  const double scale = 1 / std::sqrt(double(shape.d_head));
  const uint32_t position = s.length + row - s.first_row, h_kv = head / (shape.n_head / shape.n_head_kv);
  const uint32_t first = first_visible(position, shape.window);
  const auto at = [&](const Cached& c, uint32_t p) {
    const size_t block = size_t(made.tables[s.table + p / kKvPositions]);
    return &c.values[block * c.elements + (h_kv * kKvPositions + p % kKvPositions) * c.d];
  };
  const float* q = &made.q[(size_t(row) * shape.n_head + head) * shape.d_head];
  std::vector<double> p(position + 1 - first);
  double best = -1e300, sum = 0, sizes = 0, squares = 0;
  for (uint32_t j = 0; j < p.size(); j++) {
    const double* key = at(made.k, first + j);
    double score = 0, size = 0, square = 0;
    for (uint32_t d = 0; d < shape.d_head; d++) {
      const double x = double(q[d]) * key[d];
      score += x, size += std::fabs(x), square += x * x;
    }
    score *= scale;
    if (shape.softcap != 0) score = shape.softcap * std::tanh(score / shape.softcap);
    p[j] = score;
    best = std::max(best, score), sizes = std::max(sizes, size * scale);
    squares = std::max(squares, std::sqrt(square) * scale);
  }
  for (double& x : p) sum += x = std::exp(x - best);
  Expected expected{std::vector<double>(shape.d_value), std::vector<double>(shape.d_value)};
  for (uint32_t d = 0; d < shape.d_value; d++) {
    double size = 0, square = 0, values = 0;
    for (uint32_t j = 0; j < p.size(); j++) {
      values += std::fabs(at(made.v, first + j)[d]);
      const double x = p[j] / sum * at(made.v, first + j)[d];
      expected.want[d] += x, size += std::fabs(x), square += x * x;
    }
    expected.allowed[d] = 4 * 0x1p-23 * (4 + sizes) * size;
    if (halves) {
      expected.allowed[d] += 3 * 0x1p-11 * (std::sqrt(square) + squares * size) + 0x1p-25 * values;
    }
  }
  return expected;
}

template <class Item>
const Buffer& upload_list(Bench& bench, const std::vector<Item>& items) {
  std::vector<std::byte> bytes(attention_list_bytes<Item>(items.size()));
  write_attention_list<Item>(items, bytes);
  return bench.upload(bytes);
}

}  // namespace

std::string run_attention(Device& device, const std::string& kernel, const AttentionShape& shape) {
  const Made made = make(shape);
  const bool any = kernel == "any", prefill = kernel == "prefill";
  const AttentionLists lists = attention_items(made.sequences, {shape.window, shape.max_splits, !any});
  const std::vector<AttentionItem>& items = prefill ? lists.prefill : lists.decode;
  const uint32_t heads_of_kv = shape.n_head / shape.n_head_kv, d = shape.d_value;

  Bench bench(device);
  const AttentionArgs args{shape.n_head,
                           shape.n_head_kv,
                           shape.d_head,
                           d,
                           shape.window,
                           uint32_t(made.block_bytes),
                           float(1 / std::sqrt(double(shape.d_head))),
                           shape.softcap};
  std::vector<FunctionConstant> constants = {
      {10, uint32_t(shape.k)}, {11, uint32_t(shape.v)}, {12, shape.softcap != 0}};
  const bool decode = !any && !prefill;
  if (decode) constants.push_back({13, attention_decode_heads(heads_of_kv)});
  const Buffer& pool = bench.upload(made.pool);
  const Buffer& out = bench.upload(std::vector<float>(size_t(made.rows) * shape.n_head * d, kUntouched));
  const Size grid{decode ? attention_decode_grid(shape.n_head, shape.n_head_kv) : shape.n_head,
                  attention_bucket(uint32_t(items.size()))};
  Dispatch work = bench.dispatch("attention_" + kernel + (any ? "" : fmt::format("_{}", d)), constants, grid,
                                 {prefill ? kPrefillThreads : shape.threads});
  work.value(0, args)
      .bind(1, bench.upload(made.q))
      .bind(2, pool, made.k.offset)
      .bind(3, pool, made.v.offset)
      .bind(4, upload_list(bench, items))
      .bind(5, bench.upload(made.tables))
      .bind(6, out);
  work.threadgroup_bytes = {any       ? attention_any_threadgroup_bytes(d, shape.threads)
                            : prefill ? attention_prefill_threadgroup_bytes(d)
                                      : attention_decode_threadgroup_bytes(d, heads_of_kv, shape.threads)};
  std::vector<Dispatch> dispatches;
  if (decode) {
    uint32_t slots = 0;
    for (const AttentionCombineItem& c : lists.combine) slots = std::max(slots, c.slot + c.n_splits);
    const Buffer& partial = bench.alloc(std::max<size_t>(16, size_t(slots) * shape.n_head * (d + kPartialExtra) * 4));
    work.bind(7, partial);
    dispatches.push_back(work);
    if (!lists.combine.empty()) {
      Dispatch combine = bench.dispatch(
          "attention_combine", {}, {shape.n_head, attention_bucket(uint32_t(lists.combine.size()))}, {kCombineThreads});
      combine.value(0, args).bind(1, partial).bind(2, upload_list(bench, lists.combine)).bind(3, out);
      combine.barrier = true;
      dispatches.push_back(combine);
    }
  } else {
    dispatches.push_back(work);
  }
  bench.run(dispatches);
  if (!bench.error().empty()) return bench.error();

  if (!shape.check) return "";
  const std::vector<float> got = bench.floats(out);
  for (const KvSequence& s : made.sequences) {
    const bool mine = any || prefill == (s.n_rows > kDecodeRows);
    for (uint32_t row = s.first_row; row < s.first_row + s.n_rows; row++) {
      for (uint32_t head = 0; head < shape.n_head; head++) {
        const Expected expected = mine ? expect(shape, made, s, row, head, prefill) : Expected();
        for (uint32_t c = 0; c < d; c++) {
          const float g = got[(size_t(row) * shape.n_head + head) * d + c];
          if (!mine && g != kUntouched)
            return fmt::format("row {} is for another kernel, and column {} of head {} became {}", row, c, head, g);
          if (mine && !(std::fabs(g - expected.want[c]) <= expected.allowed[c]))
            return fmt::format("row {} column {} is {}, wanted {}: of head {}; off by {:.2g}, allowed {:.2g}", row, c,
                               g, expected.want[c], head, std::fabs(g - expected.want[c]), expected.allowed[c]);
        }
      }
    }
  }
  return "";
}

}  // namespace argent::metal
