// Speed of the CPU's matrix kernels beside what the machine can do, measured in the same run: the read bandwidth of all
// threads for few tokens, and the rate of the integer dot product instruction (or of FMA) for many.
//
//   bench_matmul [--formats q4_0,q4_k] [--shapes 576x1536,...(columns x rows)] [--tokens 1,2,4,8,16,64,512]
//                [--threads n] [--isa avx512] [--activations q8|f32] [--seconds 0.3]
//
// Every matrix is read from memory: passes walk as many copies as fill 256 MiB. A time is the best of the passes that
// fit --seconds, with one barrier a matrix, as in a plan.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <functional>
#include <random>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "backends/cpu/matmul.h"
#include "backends/cpu/pack.h"
#include "base/cpu_features.h"
#include "base/huge_pages.h"
#include "base/thread_pool.h"

namespace argent::cpu {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

// The shortest of as many runs as fit.
double best_time(double budget, const std::function<void()>& body) {
  double best = 1e30;
  const auto start = Clock::now();
  do {
    const auto begin = Clock::now();
    body();
    best = std::min(best, seconds_since(begin));
  } while (seconds_since(start) < budget);
  return best;
}

// Bytes a second that all threads read from memory together: the best of pieces of 32 MiB (as short as the passes that
// it is compared with), prefetched as kernels do.
double read_bandwidth(ThreadPool& pool, const uint8_t* data, uint64_t bytes, double budget) {
  constexpr uint64_t kPiece = uint64_t(32) << 20;
  std::atomic<uint64_t> sink = 0;
  uint64_t at = 0;
  const double time = best_time(budget, [&] {
    pool.run([&](uint32_t thread) {
      const auto lines = pool.share(kPiece / 64, thread);
      uint64_t sum = 0;  // a word of each line: what is measured is the memory, not the loads
      for (uint64_t i = lines.begin; i < lines.end; ++i) {
        __builtin_prefetch(data + at + 64 * i + 8192);
        sum ^= *reinterpret_cast<const uint64_t*>(data + at + 64 * i);
      }
      sink += sum;
    });
    at = (at + kPiece) % bytes;
  });
  return double(kPiece) / time;
}

#if defined(__x86_64__)
constexpr uint64_t kPeakSteps = 200000;

__attribute__((target("avx512f,avx512vnni"))) int vnni_peak() {
  __m512i sums[16];
  for (int i = 0; i < 16; ++i) sums[i] = _mm512_setzero_si512();
  const __m512i a = _mm512_set1_epi8(3), b = _mm512_set1_epi8(5);
  for (uint64_t step = 0; step < kPeakSteps; ++step)
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) sums[i] = _mm512_dpbusd_epi32(sums[i], a, b);
  __m512i sum = sums[0];
  for (int i = 1; i < 16; ++i) sum = _mm512_add_epi32(sum, sums[i]);
  return int(sum[0]);
}

__attribute__((target("avx2,fma"))) int fma_peak() {
  __m256 sums[12];
  for (int i = 0; i < 12; ++i) sums[i] = _mm256_setzero_ps();
  const __m256 a = _mm256_set1_ps(0.5f);
  for (uint64_t step = 0; step < kPeakSteps; ++step)
#pragma GCC unroll 12
    for (int i = 0; i < 12; ++i) sums[i] = _mm256_fmadd_ps(sums[i], a, a);
  __m256 sum = sums[0];
  for (int i = 1; i < 12; ++i) sum = _mm256_add_ps(sum, sums[i]);
  return int(sum[0]);
}
#endif

// Operations a second of all threads (a multiplication and an addition are two), or 0 where there is no such
// instruction.
double peak_ops(ThreadPool& pool, Activations kind, double budget) {
  std::atomic<int> sink = 0;
#if defined(__x86_64__)
  const bool q8 = kind == Activations::q8;
  if (q8 ? !cpu_features().avx512vnni : !cpu_features().fma) return 0;
  const double time = best_time(budget, [&] { pool.run([&](uint32_t) { sink += q8 ? vnni_peak() : fma_peak(); }); });
  // FMA is counted for 512-bit vectors where they are there; a 256-bit loop has half of their rate.
  const double lanes = q8 ? 16 * 64 * 2 : 12 * 8 * 2 * (cpu_features().avx512f ? 2 : 1);
  return kPeakSteps * lanes * pool.n_threads() / time;
#else
  return 0;
#endif
}

struct Shape {
  uint32_t cols, rows;
};

struct Options {
  std::vector<std::string> formats, shapes = {"576x576",  "576x1536", "1536x576",  "576x49152",  "896x896",
                                              "896x4864", "4864x896", "3584x3584", "3584x18944", "18944x3584"};
  std::vector<uint32_t> tokens = {1, 2, 4, 8, 16, 64, 512};
  uint32_t threads = 0;
  std::string isa = "best", activations = "native";
  double seconds = 0.3;
};

void bench_matrix(const Options& options, ThreadPool& pool, const MatmulKernels& kernels, Activations kind,
                  Format format, Shape shape, double bandwidth, double peak) {
  constexpr uint64_t kFill = uint64_t(256) << 20;
  const uint64_t bytes = packed_bytes(format, shape.rows, shape.cols), place = (bytes + 63) / 64 * 64;
  const uint32_t copies = uint32_t(std::max<uint64_t>(1, kFill / place));
  auto weights = HugePages::allocate(place * copies);
  if (!weights) return fmt::print("{}\n", weights.error().message);
  std::vector<uint8_t> rows(shape.rows * row_bytes(format, shape.cols));
  std::mt19937 random(1);
  for (uint8_t& b : rows) b = uint8_t(random() >> 9 & 0xbf);  // no half is infinite or NaN
  if (format == Format::mxfp4)
    for (size_t i = 0; i < rows.size(); i += 17) rows[i] = uint8_t(112 + rows[i] % 16);  // no sum is subnormal
  const uint32_t panels = n_panels(shape.rows);
  const double pack_time = best_time(0, [&] {
    pool.run([&](uint32_t thread) {
      const auto range = pool.share(panels, thread);
      for (uint32_t copy = 0; copy < copies; ++copy)
        pack_kernels(kernels.isa)
            .pack(format, rows.data(), shape.rows, shape.cols, range.begin, range.end - range.begin,
                  weights->data() + copy * place);
    });
  });
  fmt::print("{:6} {:>6} x {:<6} {:8.2f} MB, packed at {:.1f} GB/s\n", info(format).name, shape.cols, shape.rows,
             bytes * 1e-6, rows.size() * 1e-9 * copies / pack_time);

  for (const uint32_t n_tokens : options.tokens) {
    std::vector<float> x(uint64_t(n_tokens) * shape.cols), out(uint64_t(n_tokens) * shape.rows);
    for (float& v : x) v = float(int32_t(random())) * 0x1p-31f;
    auto acts = HugePages::allocate(activation_bytes(kind, shape.cols, n_tokens));
    if (!acts) return fmt::print("{}\n", acts.error().message);
    const auto prepare = [&] {
      const ActivationPart all = {shape.cols, n_tokens, 0, n_tokens, 0, shape.cols};
      if (kind == Activations::q8)
        kernels.prepare_q8(all, x.data(), shape.cols, reinterpret_cast<QuantGroup*>(acts->data()));
      else if (kind == Activations::bf16)
        kernels.prepare_bf16(all, x.data(), shape.cols, reinterpret_cast<BrainPair*>(acts->data()));
      else
        kernels.prepare_f32(all, x.data(), shape.cols, reinterpret_cast<float*>(acts->data()));
    };
    const double prepare_time = best_time(options.seconds * 0.1, prepare);
    // Enough matrices for about 20 ms of work, all copies for few tokens.
    const double ops = 2.0 * n_tokens * shape.cols * shape.rows;
    const uint32_t used = n_tokens <= 16 ? copies : uint32_t(std::clamp(2e10 / ops, 1.0, double(copies)));
    const double time =
        best_time(options.seconds,
                  [&] {
                    pool.run([&](uint32_t thread) {
                      const auto range = pool.share(panels, thread);
                      for (uint32_t copy = 0; copy < used; ++copy) {
                        const PackedMatrix matrix = {format, shape.rows, shape.cols, weights->data() + copy * place};
                        if (kind == Activations::q8)
                          kernels.multiply_q8(matrix, range.begin, range.end,
                                              reinterpret_cast<const QuantGroup*>(acts->data()), n_tokens, out.data(),
                                              shape.rows);
                        else if (kind == Activations::bf16)
                          kernels.multiply_bf16(matrix, range.begin, range.end,
                                                reinterpret_cast<const BrainPair*>(acts->data()), n_tokens, out.data(),
                                                shape.rows);
                        else
                          kernels.multiply_f32(matrix, range.begin, range.end,
                                               reinterpret_cast<const float*>(acts->data()), n_tokens, out.data(),
                                               shape.rows);
                        pool.barrier();
                      }
                    });
                  }) /
        used;
    fmt::print("  {:4} tokens {:11.1f} us  {:6.1f} GB/s {:4.0f} %   {:7.1f} GOP/s {:4.0f} %   prepare {:5.1f} us\n",
               n_tokens, time * 1e6, bytes / time * 1e-9, 100 * bytes / time / bandwidth, ops / time * 1e-9,
               peak > 0 ? 100 * ops / time / peak : 0.0, prepare_time * 1e6);
    std::fflush(stdout);
  }
}

int run(int argc, char** argv) {
  Options options;
  CLI::App app("Speed of the CPU's matrix kernels");
  app.add_option("--formats", options.formats)->delimiter(',');
  app.add_option("--shapes", options.shapes)->delimiter(',');
  app.add_option("--tokens", options.tokens)->delimiter(',');
  app.add_option("--threads", options.threads);
  app.add_option("--isa", options.isa)->check(CLI::IsMember({"best", "baseline", "avx2", "avxvnni", "avx512"}));
  app.add_option("--activations", options.activations)->check(CLI::IsMember({"native", "q8", "f32"}));
  app.add_option("--seconds", options.seconds);
  CLI11_PARSE(app, argc, argv);

  const Isa isa = isa_named(options.isa).value_or(best_isa());
  if (!isa_supported(isa)) return fmt::print("this machine has no {}\n", options.isa), 3;
  ThreadPool pool({options.threads, false});
  auto memory = HugePages::allocate(uint64_t(512) << 20);
  if (!memory) return fmt::print("{}\n", memory.error().message), 6;
  pool.run([&](uint32_t thread) {
    const auto range = pool.share(512, thread);
    std::fill(memory->data() + (uint64_t(range.begin) << 20), memory->data() + (uint64_t(range.end) << 20), 1);
  });
  const double bandwidth = read_bandwidth(pool, memory->data(), memory->size(), 4 * options.seconds);
  const double peak_q8 = peak_ops(pool, Activations::q8, options.seconds);
  const double peak_f32 = peak_ops(pool, Activations::f32, options.seconds);
  fmt::print("{} threads: read {:.1f} GB/s, int8 {:.0f} GOP/s, f32 {:.0f} GFLOP/s\n", pool.n_threads(),
             bandwidth * 1e-9, peak_q8 * 1e-9, peak_f32 * 1e-9);

  for (const FormatInfo& f : kFormats) {
    if (!f.format) continue;
    std::string name(f.name);
    std::transform(name.begin(), name.end(), name.begin(), [](char c) { return char(std::tolower(c)); });
    if (!options.formats.empty() &&
        std::find(options.formats.begin(), options.formats.end(), name) == options.formats.end())
      continue;
    Activations kind = native_activations(*f.format);
    if (options.activations == "f32") kind = Activations::f32;
    for (const std::string& text : options.shapes) {
      Shape shape;
      if (std::sscanf(text.c_str(), "%ux%u", &shape.cols, &shape.rows) != 2)
        return fmt::print("bad shape {}\n", text), 2;
      if (shape.cols % f.block) continue;
      bench_matrix(options, pool, matmul_kernels(isa), kind, *f.format, shape, bandwidth,
                   kind == Activations::q8 ? peak_q8 : peak_f32);
    }
  }
  return 0;
}

}  // namespace
}  // namespace argent::cpu

int main(int argc, char** argv) { return argent::cpu::run(argc, argv); }
