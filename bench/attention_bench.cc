// Speed of the CPU's attention and row kernels beside what the machine can do, measured in the same run: the rate of
// FMA for prompts, the read bandwidth of all threads for single rows over long contexts.
//
//   bench_attention [--threads n] [--isa avx512] [--seconds 0.3] [--only prefill|decode|rows] [--type q8_0]
//                   [--processor-time]
//
// Work is divided as tasks_attention.cc does it. Decode steps through as many layers as fill 256 MiB, so that keys come
// from memory, in turn with bare reads of the same memory, which its percentage is of. --processor-time takes one
// thread and its own time, for a machine that others use too. Operations are those of visible keys only: 2 (d_head +
// d_value) a query head and key.
#include <fmt/format.h>

#include <time.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <functional>
#include <random>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "backends/cpu/attention_policy.h"
#include "backends/cpu/vector.h"
#include "base/cpu_features.h"
#include "base/huge_pages.h"
#include "base/thread_pool.h"

namespace argent::cpu {
namespace {

bool g_processor_time = false;

double now() {
  timespec t;
  clock_gettime(g_processor_time ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &t);
  return double(t.tv_sec) + 1e-9 * double(t.tv_nsec);
}

// The shortest of as many runs as fit.
double best_time(double budget, const std::function<void()>& body) {
  double best = 1e30;
  const double start = now();
  do {
    const double begin = now();
    body();
    best = std::min(best, now() - begin);
  } while (now() - start < budget);
  return best;
}

// Reads the bytes with all threads of a region, a share each.
void read_all(ThreadPool& pool, uint32_t thread, const uint8_t* data, uint64_t bytes, std::atomic<uint64_t>& sink) {
  typedef uint64_t Vector __attribute__((vector_size(64)));
  const uint64_t share = bytes / pool.n_threads() / 256 * 4;  // vectors
  const Vector* p = reinterpret_cast<const Vector*>(data) + share * thread;
  Vector sums[4] = {};
  for (uint64_t i = 0; i < share; i += 4)
    for (int k = 0; k < 4; ++k) sums[k] ^= p[i + k];
  sums[0] ^= sums[1] ^ sums[2] ^ sums[3];
  sink += sums[0][0] ^ sums[0][7];
}

// Bytes a second that all threads read from memory together.
double read_bandwidth(ThreadPool& pool, const uint8_t* data, uint64_t bytes, double budget) {
  std::atomic<uint64_t> sink = 0;
  constexpr uint64_t kPieces = 16;
  uint64_t piece = 0;
  const double time = best_time(budget, [&] {
    pool.run([&](uint32_t thread) { read_all(pool, thread, data + piece * (bytes / kPieces), bytes / kPieces, sink); });
    piece = (piece + 1) % kPieces;
  });
  return double(bytes / kPieces) / time;
}

#if defined(__x86_64__)
constexpr uint64_t kPeakSteps = 200000;

__attribute__((target("avx512f"))) float fma_peak_512() {
  __m512 sums[16];
  for (__m512& sum : sums) sum = _mm512_setzero_ps();
  const __m512 a = _mm512_set1_ps(0.5f);
  for (uint64_t step = 0; step < kPeakSteps; ++step)
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) sums[i] = _mm512_fmadd_ps(sums[i], a, a);
  for (int i = 1; i < 16; ++i) sums[0] = _mm512_add_ps(sums[0], sums[i]);
  return _mm512_cvtss_f32(sums[0]);
}

__attribute__((target("avx2,fma"))) float fma_peak_256() {
  __m256 sums[12];
  for (__m256& sum : sums) sum = _mm256_setzero_ps();
  const __m256 a = _mm256_set1_ps(0.5f);
  for (uint64_t step = 0; step < kPeakSteps; ++step)
#pragma GCC unroll 12
    for (int i = 0; i < 12; ++i) sums[i] = _mm256_fmadd_ps(sums[i], a, a);
  for (int i = 1; i < 12; ++i) sums[0] = _mm256_add_ps(sums[0], sums[i]);
  return _mm256_cvtss_f32(sums[0]);
}
#endif

// Operations a second of all threads (an FMA is two), or 0 where there is no FMA.
double fma_peak(ThreadPool& pool, double budget) {
#if defined(__x86_64__)
  if (!cpu_features().fma) return 0;
  const bool wide = cpu_features().avx512f;
  std::atomic<uint32_t> sink = 0;
  const double time =
      best_time(budget, [&] { pool.run([&](uint32_t) { sink += uint32_t(wide ? fma_peak_512() : fma_peak_256()); }); });
  return kPeakSteps * (wide ? 16 * 16 : 12 * 8) * 2.0 * pool.n_threads() / time;
#else
  return 0;
#endif
}

struct Machine {
  ThreadPool& pool;
  const VectorKernels& kernels;
  double bandwidth, peak, seconds;
};

struct Shape {
  const char* name;
  uint32_t n_head, n_head_kv, d;
  uint32_t window = 0;
  KvType type = KvType::f16;
};

// Layers of a cache filled up to n_keys, blocks in the order of a fresh pool.
struct Cache {
  Cache(const Machine& m, const Shape& s, uint32_t n_keys, uint32_t n_layers) {
    const uint32_t n_blocks = (n_keys + kSplitKeys - 1) / kSplitKeys * (kSplitKeys / kKvBlockTokens);
    bytes = kv_bytes_of(s.type, uint64_t(n_blocks) * kKvBlockTokens * s.n_head_kv * s.d);
    for (uint32_t b = 0; b < n_blocks; ++b) table.push_back(int32_t(b));
    memory = HugePages::allocate(2 * bytes * n_layers);
    if (!memory) fmt::print("{}\n", memory.error().message), std::exit(6);
    for (uint32_t l = 0; l < n_layers; ++l) {
      uint8_t* at = memory->data() + 2 * bytes * l;
      layers.push_back({at, at + bytes, s.type, s.type, s.n_head_kv, s.d, s.d});
    }
    std::mt19937 random(1);
    std::vector<float> x(s.n_head_kv * s.d);
    for (uint32_t key = 0; key < n_keys; ++key) {
      for (float& v : x) v = float(int32_t(random())) * 0x1p-31f;
      for (const KvLayer& l : layers)
        m.kernels.kv_store(l, table[key / kKvBlockTokens], key % kKvBlockTokens, x.data(), x.data());
    }
  }

  uint64_t bytes;  // of one layer's K
  std::vector<int32_t> table;
  Result<HugePages> memory = fail(Code::internal, "");
  std::vector<KvLayer> layers;
};

void report(const Machine& m, const std::string& what, double time, double ops, double bytes) {
  fmt::print("{:44} {:10.1f} us {:8.1f} GFLOP/s {:4.0f} % {:7.1f} GB/s {:4.0f} %\n", what, time * 1e6,
             ops / time * 1e-9, m.peak > 0 ? 100 * ops / time / m.peak : 0.0, bytes / time * 1e-9,
             100 * bytes / time / m.bandwidth);
  std::fflush(stdout);
}

void prefill(const Machine& m, const Shape& s, uint32_t n_rows, uint32_t past) {
  const Cache cache(m, s, past + n_rows, 1);
  const uint32_t group = s.n_head / s.n_head_kv, width = s.n_head * s.d;
  const uint64_t state = attention_state_floats(s.d), scratch = attention_scratch(group, s.d, s.d);
  std::vector<float> q(uint64_t(n_rows) * width), out(q.size());
  std::mt19937 random(2);
  for (float& v : q) v = float(int32_t(random())) * 0x1p-31f;
  auto states = HugePages::allocate(m.pool.n_threads() * (scratch + kAttentionRows * group * state * 4));
  if (!states) return fmt::print("{}\n", states.error().message);
  const uint32_t tiles = (n_rows + kAttentionRows - 1) / kAttentionRows * s.n_head_kv;
  const double time = best_time(m.seconds, [&] {
    m.pool.run([&](uint32_t thread) {
      uint8_t* mine = states->data() + thread * (scratch + kAttentionRows * group * state * 4);
      float* tile_states = reinterpret_cast<float*>(mine + scratch);
      for (uint32_t c = m.pool.claim(); c < tiles; c = m.pool.claim()) {
        const uint32_t index = tiles - 1 - c, first = index / s.n_head_kv * kAttentionRows,
                       head_kv = index % s.n_head_kv;
        const uint32_t count = std::min(kAttentionRows, n_rows - first);
        const float* rows[kAttentionRows];
        int32_t position[kAttentionRows];
        for (uint32_t i = 0; i < count; ++i) {
          rows[i] = q.data() + uint64_t(first + i) * width + uint64_t(head_kv) * group * s.d;
          position[i] = int32_t(past + first + i);
        }
        const AttentionTile tile = {
            &cache.layers[0], cache.table.data(), head_kv, group, s.window, 0.125f, 0, count, rows, position};
        const uint32_t oldest =
            s.window && uint32_t(position[0]) + 1 > s.window ? uint32_t(position[0]) + 1 - s.window : 0;
        m.kernels.attention_begin(tile_states, count * group, s.d);
        m.kernels.attention(tile, oldest / kSplitKeys, uint32_t(position[count - 1]) / kSplitKeys + 1, tile_states,
                            mine);
        for (uint32_t i = 0; i < count * group; ++i)
          m.kernels.attention_end(
              tile_states + i * state,
              out.data() + (uint64_t(first + i / group) * s.n_head + head_kv * group + i % group) * s.d, s.d);
      }
    });
  });
  double keys = 0;
  for (uint32_t r = past; r < past + n_rows; ++r) keys += s.window ? std::min(r + 1, s.window) : r + 1;
  report(m, fmt::format("{} {}: {} rows after {}", name_of(s.type), s.name, n_rows, past), time,
         keys * s.n_head * 4 * s.d, 0);
}

void decode(const Machine& m, const Shape& s, uint32_t depth) {
  constexpr uint64_t kFill = uint64_t(256) << 20;
  const uint64_t layer_bytes = 2 * kv_bytes_of(s.type, uint64_t(depth) * s.n_head_kv * s.d);
  const uint32_t n_layers = uint32_t(std::max<uint64_t>(1, kFill / layer_bytes));
  const Cache cache(m, s, depth, n_layers);
  const uint32_t group = s.n_head / s.n_head_kv, n_splits = (depth - 1) / kSplitKeys + 1;
  const uint64_t state = attention_state_floats(s.d), scratch = attention_scratch(group, s.d, s.d);
  std::vector<float> q(s.n_head * s.d), out(q.size());
  std::mt19937 random(2);
  for (float& v : q) v = float(int32_t(random())) * 0x1p-31f;
  auto memory = HugePages::allocate(m.pool.n_threads() * scratch + uint64_t(n_splits + 1) * s.n_head * state * 4);
  if (!memory) return fmt::print("{}\n", memory.error().message);
  float* states = reinterpret_cast<float*>(memory->data() + m.pool.n_threads() * scratch);
  const int32_t position = int32_t(depth - 1);
  const uint32_t policy = units_a_claim(1, s.n_head_kv, n_splits, m.pool.n_threads()), a_claim = std::max(1u, policy);
  const auto attend = [&](const KvLayer& layer, uint32_t thread) {
    constexpr uint32_t kBlocks = kSplitKeys / kKvBlockTokens;
    const uint32_t n_units = s.n_head_kv * (policy ? n_splits : 1);
    const bool ahead = claims_ahead(n_units / a_claim, m.pool.n_threads());
    uint32_t begin = m.pool.claim() * a_claim, then = n_units;
    for (; begin < n_units; begin = ahead ? then : m.pool.claim() * a_claim) {
      if (ahead) then = m.pool.claim() * a_claim;
      const uint32_t end = std::min(begin + a_claim, n_units);
      for (uint32_t unit = begin; unit < end; ++unit) {
        const uint32_t k = unit / s.n_head_kv, head_kv = unit % s.n_head_kv, next = unit + 1 < end ? unit + 1 : then;
        const float* rows = q.data() + uint64_t(head_kv) * group * s.d;
        AttentionTile tile = {&layer, cache.table.data(), head_kv, group, s.window, 0.125f, 0, 1, &rows, &position};
        if (next < n_units) {
          tile.next = cache.table.data() + next / s.n_head_kv * kBlocks;
          tile.n_next = std::min(kBlocks, uint32_t(cache.table.size()) - next / s.n_head_kv * kBlocks);
          tile.next_head = next % s.n_head_kv;
        }
        float* mine = states + (uint64_t(k) * s.n_head + head_kv * group) * state;
        m.kernels.attention_begin(mine, group, s.d);
        m.kernels.attention(tile, k, policy ? k + 1 : n_splits, mine, memory->data() + thread * scratch);
      }
    }
    m.pool.barrier();
    for (uint32_t h = m.pool.claim(); h < s.n_head_kv; h = m.pool.claim()) {
      float* sum = states + (uint64_t(n_splits) * s.n_head + h * group) * state;
      m.kernels.attention_begin(sum, group, s.d);
      for (uint32_t k = 0; k < (policy ? n_splits : 1); ++k)
        m.kernels.attention_merge(sum, states + (uint64_t(k) * s.n_head + h * group) * state, group, s.d);
      for (uint32_t g = 0; g < group; ++g)
        m.kernels.attention_end(sum + g * state, out.data() + (h * group + g) * s.d, s.d);
    }
    m.pool.barrier();
  };
  // Some layers in one region, as a step does it, in turn with a bare read of as many others.
  const uint32_t n = std::max(1u, n_layers / 4);
  std::atomic<uint64_t> sink = 0;
  uint32_t next = 0;
  double time = 1e30, read_time = 1e30;
  const double start = now();
  do {
    double begin = now();
    m.pool.run([&](uint32_t thread) {
      for (uint32_t l = 0; l < n; ++l) attend(cache.layers[(next + l) % n_layers], thread);
    });
    time = std::min(time, (now() - begin) / n);
    next = (next + n) % n_layers;
    begin = now();
    m.pool.run([&](uint32_t thread) {
      for (uint32_t l = 0; l < n; ++l)
        read_all(m.pool, thread, cache.layers[(next + l) % n_layers].k, 2 * cache.bytes, sink);
    });
    read_time = std::min(read_time, (now() - begin) / n);
    next = (next + n) % n_layers;
  } while (now() - start < m.seconds);
  Machine here = m;
  here.bandwidth = 2 * double(cache.bytes) / read_time;
  report(here, fmt::format("{} {}: 1 row after {}", name_of(s.type), s.name, depth - 1), time,
         double(depth) * s.n_head * 4 * s.d, double(layer_bytes));
}

// One thread, rows that stay in L1 or L2.
void rows(const Machine& m) {
  const VectorKernels& k = m.kernels;
  for (const uint32_t n : {576u, 6656u, 49152u}) {
    std::vector<float> x(n), u(n, 0.5f), y(n), z(n);
    std::mt19937 random(1);
    for (float& v : x) v = float(int32_t(random())) * 0x1p-29f;
    std::vector<float> table(64, 0.5f);
    struct Kernel {
      const char* name;
      std::function<void()> run;
      double streams;
    };
    for (const Kernel& kernel :
         {Kernel{"add", [&] { k.add(x.data(), u.data(), y.data(), n); }, 3},
          {"silu_mul", [&] { k.silu_mul(x.data(), u.data(), y.data(), n); }, 3},
          {"gelu_mul", [&] { k.gelu_mul(x.data(), u.data(), y.data(), n); }, 3},
          {"softcap", [&] { k.softcap(x.data(), 30, y.data(), n); }, 2},
          {"rms_norm", [&] { k.rms_norm(x.data(), u.data(), y.data(), n, n, 1e-6f); }, 4},
          {"add_rms_norm", [&] { k.add_rms_norm(x.data(), u.data(), u.data(), z.data(), y.data(), n, n, 1e-6f); }, 6},
          {"rope", [&] { k.rope(x.data(), table.data(), y.data(), n / 64, 64, 64, false); }, 2},
          {"rope, neighbours", [&] { k.rope(x.data(), table.data(), y.data(), n / 64, 64, 64, true); }, 2}}) {
      constexpr int kRepeat = 100;
      const double time = best_time(0.1 * m.seconds,
                                    [&] {
                                      for (int i = 0; i < kRepeat; ++i) kernel.run();
                                    }) /
                          kRepeat;
      fmt::print("{:20} {:6} {:9.3f} us {:7.1f} GB/s {:7.3f} ns an element\n", kernel.name, n, time * 1e6,
                 kernel.streams * 4 * n / time * 1e-9, time / n * 1e9);
    }
  }
}

int run(int argc, char** argv) {
  uint32_t threads = 0;
  std::string isa_name = "best", only, type;
  double seconds = 0.3;
  CLI::App app("Speed of the CPU's attention and row kernels");
  app.add_option("--threads", threads);
  app.add_option("--isa", isa_name)->check(CLI::IsMember({"best", "baseline", "avx2", "avx512"}));
  app.add_option("--seconds", seconds);
  app.add_option("--type", type)->check(CLI::IsMember({"f16", "bf16", "f32", "q8_0"}));
  app.add_flag("--processor-time", g_processor_time);
  app.add_option("--only", only)->check(CLI::IsMember({"prefill", "decode", "rows"}));
  CLI11_PARSE(app, argc, argv);
  const Isa isa = isa_name == "avx512" ? Isa::avx512
                  : isa_name == "avx2" ? Isa::avx2
                  : isa_name == "best" ? best_isa()
                                       : Isa::baseline;
  if (!isa_supported(isa)) return fmt::print("this machine has no {}\n", isa_name), 3;
  ThreadPool pool({g_processor_time ? 1 : threads, false});
  auto memory = HugePages::allocate(uint64_t(256) << 20);
  if (!memory) return fmt::print("{}\n", memory.error().message), 6;
  pool.run([&](uint32_t thread) {
    const auto range = pool.share(256, thread);
    std::fill(memory->data() + (uint64_t(range.begin) << 20), memory->data() + (uint64_t(range.end) << 20), 1);
  });
  const Machine m = {pool, vector_kernels(isa), read_bandwidth(pool, memory->data(), memory->size(), 2 * seconds),
                     fma_peak(pool, seconds), seconds};
  fmt::print("{} threads: read {:.1f} GB/s, f32 {:.0f} GFLOP/s\n", pool.n_threads(), m.bandwidth * 1e-9, m.peak * 1e-9);

  std::vector<KvType> types;
  for (size_t t = 0; t < kKvTypeNames.size(); ++t)
    if (type.empty() || type == kKvTypeNames[t]) types.push_back(KvType(t));
  for (const KvType t : types) {
    if (only.empty() || only == "prefill") {
      prefill(m, {"9 heads / 3 x 64", 9, 3, 64, 0, t}, 512, 0);
      prefill(m, {"14 heads / 2 x 64", 14, 2, 64, 0, t}, 512, 0);
      prefill(m, {"16 heads / 8 x 128", 16, 8, 128, 0, t}, 512, 0);
      prefill(m, {"16 heads / 8 x 128", 16, 8, 128, 0, t}, 512, 3584);
      prefill(m, {"28 heads / 4 x 128", 28, 4, 128, 0, t}, 512, 0);
      prefill(m, {"4 heads / 1 x 256 window 512", 4, 1, 256, 512, t}, 512, 3584);
    }
    if (only.empty() || only == "decode") {
      decode(m, {"9 heads / 3 x 64", 9, 3, 64, 0, t}, 8192);
      decode(m, {"14 heads / 2 x 64", 14, 2, 64, 0, t}, 8192);
      decode(m, {"16 heads / 8 x 128", 16, 8, 128, 0, t}, 2048);
      decode(m, {"16 heads / 8 x 128", 16, 8, 128, 0, t}, 8192);
      decode(m, {"28 heads / 4 x 128", 28, 4, 128, 0, t}, 8192);
      decode(m, {"32 heads / 2 x 128", 32, 2, 128, 0, t}, 8192);
      decode(m, {"4 heads / 1 x 256", 4, 1, 256, 0, t}, 8192);
      decode(m, {"4 heads / 1 x 256", 4, 1, 256, 0, t}, 512);
    }
  }
  if (only.empty() || only == "rows") rows(m);
  return 0;
}

}  // namespace
}  // namespace argent::cpu

int main(int argc, char** argv) { return argent::cpu::run(argc, argv); }
