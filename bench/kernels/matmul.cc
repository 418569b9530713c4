// Matrix kernels over the matrices of known models. Weights come from memory: a run walks as many copies as fill
// 256 MiB, threads claim panels, and one barrier ends a matrix, as in a plan; of many tokens as many as take about 20
// ms.
#include <algorithm>

#include "backends/cpu/pack.h"
#include "backends/cpu/tasks.h"
#include "kernels/bench.h"

namespace argent::bench {
namespace {

constexpr uint32_t kTokens[] = {1, 2, 4, 8, 16, 512};
constexpr uint32_t kHeadRows = 32768;  // of a vocabulary: more rows are more of the same

struct Matrix {
  std::string name;
  uint32_t cols, rows;
  bool usual;
};

std::vector<Matrix> matrices() {
  std::vector<Matrix> all;
  for (const ModelShape& m : kModels) {
    const uint32_t q = m.n_head * m.d_head;
    const auto add = [&](const char* part, uint32_t cols, uint32_t rows, bool usual = false) {
      all.push_back({fmt::format("{}.{}.{}x{}", m.name, part, cols, rows), cols, rows, usual});
    };
    add("q", m.n_embd, q);
    add("kv", m.n_embd, m.n_head_kv * m.d_head);
    add("out", q, m.n_embd);
    add("gate", m.n_embd, m.n_ff, m.name == "smollm2-135m" || m.name == "qwen2.5-7b");
    add("down", m.n_ff, m.n_embd, m.name == "qwen3-0.6b");
    add("head", m.n_embd, std::min(m.n_vocab, kHeadRows));
  }
  return all;
}

bool usual_format(Format f) {
  return f == Format::q4_0 || f == Format::q4_1 || f == Format::q4_k || f == Format::q6_k || f == Format::q8_0;
}

// Copies of one matrix, packed, made when the first case wants them.
class Weights {
 public:
  Weights(Bench& b, Format format, const Matrix& m)
      : format_(format), matrix_(m), place_((cpu::packed_bytes(format, m.rows, m.cols) + 63) / 64 * 64) {
    constexpr uint64_t kFill = uint64_t(256) << 20;
    n_copies_ = uint32_t(std::max<uint64_t>(1, kFill / place_));
    memory_ = b.memory(place_ * n_copies_);
    std::vector<uint8_t> rows(m.rows * row_bytes(format, m.cols));
    Rng random(1);
    for (uint8_t& byte : rows) byte = uint8_t(random.next() >> 40 & 0xbf);  // no half is infinite or NaN
    if (format == Format::mxfp4)
      for (size_t i = 0; i < rows.size(); i += 17) rows[i] = uint8_t(112 + rows[i] % 16);  // no sum is subnormal
    const uint32_t panels = cpu::n_panels(m.rows);
    b.pool().run([&](uint32_t thread) {
      const auto range = b.pool().share(panels, thread);
      for (uint32_t copy = 0; copy < n_copies_; ++copy)
        cpu::pack_kernels(b.isa()).pack(
            format, rows.data(), m.rows, m.cols, range.begin, range.end - range.begin,
            memory_.data() + copy * place_ + range.begin * cpu::panel_bytes(format, m.cols));
    });
  }
  uint32_t n_copies() const { return n_copies_; }
  cpu::PackedMatrix copy(uint32_t i) const {
    return {format_, matrix_.rows, matrix_.cols, memory_.data() + i * place_};
  }

 private:
  Format format_;
  const Matrix& matrix_;
  uint64_t place_;
  uint32_t n_copies_;
  HugePages memory_;
};

void measure(Bench& b, const Weights& weights, const Matrix& m, Format format, cpu::Activations kind, uint32_t n_tokens,
             const std::string& name) {
  const cpu::MatmulKernels& k = cpu::matmul_kernels(b.isa());
  const bool q8 = kind == cpu::Activations::q8;
  const std::vector<float> x = random_floats(uint64_t(n_tokens) * m.cols);
  std::vector<float> out(uint64_t(n_tokens) * m.rows);
  const HugePages acts = b.memory(cpu::activation_bytes(kind, m.cols, n_tokens));
  auto* groups = reinterpret_cast<cpu::QuantGroup*>(acts.data());
  auto* floats = reinterpret_cast<float*>(acts.data());
  auto* pairs = reinterpret_cast<cpu::BrainPair*>(acts.data());
  const bool bf16 = kind == cpu::Activations::bf16;
  const cpu::ActivationPart all{m.cols, n_tokens, 0, n_tokens, 0, m.cols};
  if (q8)
    k.prepare_q8(all, x.data(), m.cols, groups);
  else if (bf16)
    k.prepare_bf16(all, x.data(), m.cols, pairs);
  else
    k.prepare_f32(all, x.data(), m.cols, floats);
  const double ops = 2.0 * n_tokens * m.cols * m.rows;
  const uint32_t n_copies =
      n_tokens <= 16 ? weights.n_copies() : uint32_t(std::clamp(2e10 / ops, 1.0, double(weights.n_copies())));
  const uint32_t panels = cpu::n_panels(m.rows), chunk = cpu::chunk_panels(panels, b.pool().n_threads());
  const double time = b.time([&] {
    b.pool().run([&](uint32_t) {
      for (uint32_t copy = 0; copy < n_copies; ++copy) {
        for (uint32_t c = b.pool().claim(); c * chunk < panels; c = b.pool().claim()) {
          const uint32_t begin = c * chunk, end = std::min(begin + chunk, panels);
          if (q8)
            k.multiply_q8(weights.copy(copy), begin, end, groups, n_tokens, out.data(), m.rows);
          else if (bf16)
            k.multiply_bf16(weights.copy(copy), begin, end, pairs, n_tokens, out.data(), m.rows);
          else
            k.multiply_f32(weights.copy(copy), begin, end, floats, n_tokens, out.data(), m.rows);
        }
        b.pool().barrier();
      }
    });
  });
  b.report(name, time / n_copies,
           {.bytes = double(cpu::packed_bytes(format, m.rows, m.cols)),
            .from_memory = true,
            .ops = ops,
            .peak = q8 ? Work::Peak::int8 : Work::Peak::f32});
}

}  // namespace

void matmul(Bench& b) {
  for (const Matrix& m : matrices())
    for (const FormatInfo& f : kFormats) {
      if (!f.format || m.cols % f.block) continue;
      const cpu::Activations native = cpu::native_activations(*f.format);
      std::string format(f.name);
      std::transform(format.begin(), format.end(), format.begin(), [](char c) { return char(std::tolower(c)); });
      std::optional<Weights> weights;
      std::vector<cpu::Activations> kinds = {native};
      if (native != cpu::Activations::f32) kinds.push_back(cpu::Activations::f32);
      for (const cpu::Activations kind : kinds) {
        for (const uint32_t n : kTokens) {
          const bool decoded = kind == cpu::Activations::f32 && native != cpu::Activations::f32;
          const std::string name =
              fmt::format("{}/{}/{}/{}/n{}", decoded ? "matmul_decoded" : "matmul", b.isa_name(), format, m.name, n);
          const bool usual = m.usual && !decoded && usual_format(*f.format) && n != 2 && n != 8;
          if (!b.wants(name, usual)) continue;
          if (!weights) weights.emplace(b, *f.format, m);
          measure(b, *weights, m, *f.format, kind, n, name);
        }
      }
    }
}

}  // namespace argent::bench
