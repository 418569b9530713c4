// Row kernels on one thread, on rows that stay in L1 or L2: bytes are those of caches. And the preparation of
// activations for the matrix kernels.
#include "backends/cpu/vector.h"

#include "kernels/bench.h"

namespace argent::bench {
namespace {

struct Kernel {
  const char* name;
  std::function<void()> run;
  double streams;  // rows read and written
};

void rows(Bench& b, uint32_t n, bool usual) {
  const cpu::VectorKernels& k = cpu::vector_kernels(b.isa());
  const std::vector<float> x = random_floats(n, 4), u = random_floats(n, 1, 2);
  std::vector<float> y(n), z(n);
  const std::vector<float> table(64, 0.5f);
  for (const Kernel& kernel :
       {Kernel{"add", [&] { k.add(x.data(), u.data(), y.data(), n); }, 3},
        {"mul", [&] { k.mul(x.data(), u.data(), y.data(), n); }, 3},
        {"silu", [&] { k.silu(x.data(), y.data(), n); }, 2},
        {"silu_mul", [&] { k.silu_mul(x.data(), u.data(), y.data(), n); }, 3},
        {"gelu_mul", [&] { k.gelu_mul(x.data(), u.data(), y.data(), n); }, 3},
        {"softcap", [&] { k.softcap(x.data(), 30, y.data(), n); }, 2},
        {"rms_norm", [&] { k.rms_norm(x.data(), u.data(), y.data(), n, n, 1e-6f); }, 3},
        {"add_rms_norm", [&] { k.add_rms_norm(x.data(), u.data(), u.data(), z.data(), y.data(), n, n, 1e-6f); }, 5},
        {"rope", [&] { k.rope(x.data(), table.data(), y.data(), n / 64, 64, 64, false); }, 2},
        {"rope_neighbours", [&] { k.rope(x.data(), table.data(), y.data(), n / 64, 64, 64, true); }, 2}}) {
    const std::string name = fmt::format("vector/{}/{}/{}", b.isa_name(), kernel.name, n);
    if (!b.wants(name, usual)) continue;
    constexpr int kRepeat = 100;
    const double time = b.time([&] {
      for (int i = 0; i < kRepeat; ++i) kernel.run();
    }) / kRepeat;
    b.report(name, time, {.bytes = kernel.streams * 4 * n});
  }
}

void prepare(Bench& b, uint32_t n_cols, uint32_t n_tokens, bool usual) {
  const cpu::MatmulKernels& k = cpu::matmul_kernels(b.isa());
  for (const cpu::Activations kind : {cpu::Activations::q8, cpu::Activations::bf16, cpu::Activations::f32}) {
    const bool q8 = kind == cpu::Activations::q8, bf16 = kind == cpu::Activations::bf16;
    const std::string name = fmt::format("prepare/{}/{}/{}/n{}", b.isa_name(),
                                         q8     ? "quantize_q8"
                                         : bf16 ? "bf16"
                                                : "f32",
                                         n_cols, n_tokens);
    if (!b.wants(name, usual)) continue;
    const std::vector<float> x = random_floats(uint64_t(n_cols) * n_tokens);
    const HugePages acts = b.memory(cpu::activation_bytes(kind, n_cols, n_tokens));
    const cpu::ActivationPart all{n_cols, n_tokens, 0, n_tokens, 0, n_cols};
    const double time = b.time([&] {
      if (q8)
        k.prepare_q8(all, x.data(), n_cols, reinterpret_cast<cpu::QuantGroup*>(acts.data()));
      else if (bf16)
        k.prepare_bf16(all, x.data(), n_cols, reinterpret_cast<cpu::BrainPair*>(acts.data()));
      else
        k.prepare_f32(all, x.data(), n_cols, reinterpret_cast<float*>(acts.data()));
    });
    b.report(name, time, {.bytes = 4.0 * double(x.size()) + double(acts.size())});
  }
}

}  // namespace

void vector(Bench& b) {
  for (const ModelShape& m : kModels) {
    const bool usual = m.name == "qwen2.5-0.5b";
    rows(b, m.n_embd, usual);
    rows(b, m.n_ff, usual);
  }
  for (const ModelShape& m : kModels)
    for (const uint32_t n : {1u, 16u, 512u}) prepare(b, m.n_embd, n, m.name == "qwen2.5-0.5b");
}

}  // namespace argent::bench
