// Attention over the heads of known models: prompts beside the rate of FMA, single rows over long contexts beside the
// read bandwidth. Work is divided as tasks_attention.cc does it. Decode steps through as many layers as fill 256 MiB,
// so that keys come from memory. Operations are those of visible keys: 2 (d_head + d_value) a query head and key.
#include <algorithm>

#include "backends/cpu/vector.h"
#include "kernels/bench.h"

namespace argent::bench {
namespace {

using namespace cpu;

struct Heads {
  std::string name;
  uint32_t n_head, n_head_kv, d, window;
  KvType type = KvType::f16;
};

// Layers of a cache filled up to n_keys, blocks in the order of a fresh pool.
struct Cache {
  Cache(Bench& b, const Heads& h, uint32_t n_keys, uint32_t n_layers) {
    const uint32_t n_blocks = (n_keys + kSplitKeys - 1) / kSplitKeys * (kSplitKeys / kKvBlockTokens);
    const uint64_t bytes = uint64_t(n_blocks) * kKvBlockTokens * h.n_head_kv * h.d * kv_element_bytes(h.type);
    for (uint32_t i = 0; i < n_blocks; ++i) table.push_back(int32_t(i));
    memory = b.memory(2 * bytes * n_layers);
    for (uint32_t l = 0; l < n_layers; ++l) {
      uint8_t* at = memory.data() + 2 * bytes * l;
      layers.push_back({at, at + bytes, h.type, h.type, h.n_head_kv, h.d, h.d});
    }
    const std::vector<float> x = random_floats(uint64_t(h.n_head_kv) * h.d + 64);
    b.pool().run([&](uint32_t thread) {  // whole blocks: a line holds two keys of K
      const auto share = b.pool().share((n_keys + kKvBlockTokens - 1) / kKvBlockTokens, thread);
      for (const KvLayer& layer : layers)
        for (uint32_t key = share.begin * kKvBlockTokens; key < std::min(n_keys, share.end * kKvBlockTokens); ++key)
          vector_kernels(b.isa()).kv_store(layer, table[key / kKvBlockTokens], key % kKvBlockTokens,
                                           x.data() + key % 61, x.data() + key % 59);
    });
  }

  std::vector<int32_t> table;
  HugePages memory;
  std::vector<KvLayer> layers;
};

void prefill(Bench& b, const Heads& h, uint32_t n_rows, uint32_t past, const std::string& name) {
  const Cache cache(b, h, past + n_rows, 1);
  const VectorKernels& k = vector_kernels(b.isa());
  const uint32_t group = h.n_head / h.n_head_kv, width = h.n_head * h.d;
  const uint64_t state = attention_state_floats(h.d), scratch = attention_scratch(group, h.d, h.d);
  const uint64_t own = scratch + kAttentionRows * group * state * 4;
  const std::vector<float> q = random_floats(uint64_t(n_rows) * width);
  std::vector<float> out(q.size());
  const HugePages states = b.memory(b.pool().n_threads() * own);
  const uint32_t tiles = (n_rows + kAttentionRows - 1) / kAttentionRows * h.n_head_kv;
  const double time = b.time([&] {
    b.pool().run([&](uint32_t thread) {
      uint8_t* mine = states.data() + thread * own;
      float* tile_states = reinterpret_cast<float*>(mine + scratch);
      for (uint32_t c = b.pool().claim(); c < tiles; c = b.pool().claim()) {
        const uint32_t index = tiles - 1 - c, first = index / h.n_head_kv * kAttentionRows, head = index % h.n_head_kv;
        const uint32_t count = std::min(kAttentionRows, n_rows - first);
        const float* rows[kAttentionRows];
        int32_t position[kAttentionRows];
        for (uint32_t i = 0; i < count; ++i) {
          rows[i] = q.data() + uint64_t(first + i) * width + uint64_t(head) * group * h.d;
          position[i] = int32_t(past + first + i);
        }
        const AttentionTile tile = {&cache.layers[0], cache.table.data(), head, group, h.window, 0.125f, 0, count, rows,
                                    position};
        const uint32_t seen = uint32_t(position[0]) + 1, oldest = h.window && seen > h.window ? seen - h.window : 0;
        k.attention_begin(tile_states, count * group, h.d);
        k.attention(tile, oldest / kSplitKeys, uint32_t(position[count - 1]) / kSplitKeys + 1, tile_states, mine);
        for (uint32_t i = 0; i < count * group; ++i)
          k.attention_end(tile_states + i * state,
                          out.data() + (uint64_t(first + i / group) * h.n_head + head * group + i % group) * h.d, h.d);
      }
    });
  });
  double keys = 0;
  for (uint32_t r = past; r < past + n_rows; ++r) keys += h.window ? std::min(r + 1, h.window) : r + 1;
  b.report(name, time, {.ops = keys * h.n_head * 4 * h.d, .peak = Work::Peak::f32});
}

void decode(Bench& b, const Heads& h, uint32_t depth, const std::string& name) {
  constexpr uint64_t kFill = uint64_t(256) << 20;
  const uint64_t layer_bytes = uint64_t(2) * depth * h.n_head_kv * h.d * kv_element_bytes(h.type);
  const uint32_t n_layers = uint32_t(std::max<uint64_t>(1, kFill / layer_bytes));
  const Cache cache(b, h, depth, n_layers);
  const VectorKernels& k = vector_kernels(b.isa());
  ThreadPool& pool = b.pool();
  const uint32_t group = h.n_head / h.n_head_kv, n_splits = (depth - 1) / kSplitKeys + 1;
  const uint64_t state = attention_state_floats(h.d), scratch = attention_scratch(group, h.d, h.d);
  const std::vector<float> q = random_floats(uint64_t(h.n_head) * h.d);
  std::vector<float> out(q.size());
  const HugePages memory = b.memory(pool.n_threads() * scratch + uint64_t(n_splits + 1) * h.n_head * state * 4);
  float* states = reinterpret_cast<float*>(memory.data() + pool.n_threads() * scratch);
  const int32_t position = int32_t(depth - 1);
  // tasks_attention.cc: calls of one split where there are few heads.
  const bool by_splits = pool.n_threads() > 1 && h.n_head_kv < 4 * pool.n_threads();
  const uint32_t n_calls = by_splits ? n_splits : 1;
  const auto layer_step = [&](const KvLayer& layer, uint32_t thread) {
    for (uint32_t c = pool.claim(); c < h.n_head_kv * n_calls; c = pool.claim()) {
      const uint32_t head = c / n_calls, split = c % n_calls;
      const float* rows = q.data() + uint64_t(head) * group * h.d;
      const AttentionTile tile = {&layer, cache.table.data(), head, group, 0, 0.125f, 0, 1, &rows, &position};
      float* mine = states + (uint64_t(split) * h.n_head + head * group) * state;
      k.attention_begin(mine, group, h.d);
      k.attention(tile, split, by_splits ? split + 1 : n_splits, mine, memory.data() + thread * scratch);
    }
    pool.barrier();
    for (uint32_t head = pool.claim(); head < h.n_head_kv; head = pool.claim()) {
      float* sum = states + (uint64_t(n_splits) * h.n_head + head * group) * state;
      k.attention_begin(sum, group, h.d);
      for (uint32_t split = 0; split < n_calls; ++split)
        k.attention_merge(sum, states + (uint64_t(split) * h.n_head + head * group) * state, group, h.d);
      for (uint32_t g = 0; g < group; ++g) k.attention_end(sum + g * state, out.data() + (head * group + g) * h.d, h.d);
    }
    pool.barrier();
  };
  const double time = b.time([&] {
    pool.run([&](uint32_t thread) {
      for (const KvLayer& layer : cache.layers) layer_step(layer, thread);
    });
  }) / n_layers;
  b.report(name, time,
           {.bytes = double(layer_bytes),
            .from_memory = true,
            .ops = double(depth) * h.n_head * 4 * h.d,
            .peak = Work::Peak::f32});
}

}  // namespace

void attention(Bench& b) {
  for (const ModelShape& m : kModels)
    for (const KvType type : {KvType::f16, KvType::f32}) {
      const Heads full{
          fmt::format("{}.{}", m.name, type == KvType::f16 ? "f16" : "f32"), m.n_head, m.n_head_kv, m.d_head, 0, type};
      const bool f16 = type == KvType::f16;
      const bool usual = f16 && (m.name == "smollm2-135m" || m.name == "qwen3-0.6b");
      const auto named = [&](const char* what, const Heads& h, const std::string& size) {
        return fmt::format("{}/{}/{}{}/{}", what, b.isa_name(), h.name, h.window ? fmt::format(".w{}", h.window) : "",
                           size);
      };
      std::vector<Heads> kinds = {full};
      if (m.window) kinds.push_back(full), kinds.back().window = m.window;
      for (const Heads& h : kinds)
        for (const uint32_t past : {0u, 3584u})
          if (const std::string name = named("attention_prefill", h, fmt::format("512@{}", past)); b.wants(name, usual))
            prefill(b, h, 512, past, name);
      for (const uint32_t depth : {256u, 1024u, 8192u})
        if (const std::string name = named("attention_decode", full, fmt::format("1@{}", depth - 1));
            b.wants(name, usual && depth > 256))
          decode(b, full, depth, name);
    }
}

}  // namespace argent::bench
