// Which ISAs there are, and that those with FMA give the same bits on every architecture: where a processor's ISAs
// share the vector kernels, as Arm's do, comparing them with each other shows nothing.
#include <gtest/gtest.h>

#include <bit>
#include <cstdlib>

#include "backends/cpu/vector.h"
#include "backends_cpu/matmul_cases.h"

namespace argent::cpu {
namespace {

// tools/arm/test.sh names the ISA that the processor it emulates is to get.
TEST(Isas, NamesAndTheBest) {
  for (const Isa isa : kIsas) EXPECT_EQ(isa_named(isa_name(isa)), isa);
  EXPECT_FALSE(isa_named("sse2"));
  EXPECT_TRUE(isa_supported(Isa::baseline));
  EXPECT_TRUE(isa_supported(best_isa()));
  if (const char* wanted = std::getenv("ARGENT_TEST_BEST_ISA")) {
    EXPECT_STREQ(isa_name(best_isa()), wanted);
  }
}

// Multiples of 2^-21 in [-4, 4) without the standard library's distributions, whose bits are each library's own.
std::vector<float> plain_floats(size_t n, uint64_t seed) {
  std::vector<float> x(n);
  for (float& v : x) {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    v = float(int32_t(seed >> 40) - (1 << 23)) * 0x1p-21f;
  }
  return x;
}

uint64_t digest(const float* x, size_t n) {
  uint64_t h = 14695981039346656037u;
  for (size_t i = 0; i < n; ++i) h = (h ^ std::bit_cast<uint32_t>(x[i])) * 1099511628211u;
  return h;
}

uint64_t rows_digest(const VectorKernels& kernels) {
  constexpr uint32_t n = 333;
  std::vector<float> x = plain_floats(n, 1), u = plain_floats(n, 2), w = plain_floats(111, 3);
  std::vector<float> wide = x, all;
  for (float& v : wide) v *= 25.0f;  // into the tails of exp
  std::vector<float> y(n), sum(n);
  const auto keep = [&] { all.insert(all.end(), y.begin(), y.end()); };
  for (const std::vector<float>* row : {&x, &wide}) {
    const float* in = row->data();
    kernels.silu(in, y.data(), n), keep();
    kernels.gelu(in, y.data(), n), keep();
    kernels.sigmoid(in, y.data(), n), keep();
    kernels.softcap(in, 30.0f, y.data(), n), keep();
    kernels.silu_mul(in, u.data(), y.data(), n), keep();
    kernels.gelu_mul(in, u.data(), y.data(), n), keep();
  }
  kernels.rms_norm(x.data(), w.data(), y.data(), n, 111, 1e-6f), keep();
  kernels.add_rms_norm(x.data(), u.data(), x.data(), sum.data(), y.data(), n, n, 1e-6f), keep();
  for (const bool interleaved : {false, true}) {
    y = x;
    kernels.rope(x.data(), u.data(), y.data(), 3, 111, 54, interleaved), keep();
  }
  return digest(all.data(), all.size());
}

uint64_t attention_digest(const VectorKernels& kernels, KvType type) {
  constexpr uint32_t d = 64, n_group = 3, n_rows = 5, n_keys = 300;
  constexpr uint32_t n_blocks = (n_keys + kKvBlockTokens - 1) / kKvBlockTokens;
  const uint64_t stride = kv_bytes_of(type, kKvBlockTokens * d);
  Guarded<uint8_t> k(n_blocks * stride, 0), v(n_blocks * stride, 0);
  const KvLayer layer = {k.data(), v.data(), type, type, 1, d, d, stride, stride};
  std::vector<int32_t> table(n_blocks), position(n_rows);
  for (uint32_t i = 0; i < n_blocks; ++i) table[i] = int32_t(i);
  for (uint32_t j = 0; j < n_keys; ++j)
    kernels.kv_store(layer, int32_t(j / kKvBlockTokens), j % kKvBlockTokens, plain_floats(d, 10 + j).data(),
                     plain_floats(d, 1000 + j).data());
  const std::vector<float> queries = plain_floats(n_rows * n_group * d, 4);
  const float* q[n_rows];
  for (uint32_t r = 0; r < n_rows; ++r) {
    q[r] = queries.data() + r * n_group * d;
    position[r] = int32_t(n_keys - n_rows + r);
  }
  const uint64_t state = attention_state_floats(d);
  Guarded<float> states(n_rows * n_group * state);
  Guarded<uint8_t> scratch(attention_scratch(n_group, d, d));
  kernels.attention_begin(states.data(), n_rows * n_group, d);
  kernels.attention({&layer, table.data(), 0, n_group, 0, 0.125f, 20.0f, n_rows, q, position.data()}, 0, 2,
                    states.data(), scratch.data());
  std::vector<float> out(n_rows * n_group * d);
  for (uint32_t i = 0; i < n_rows * n_group; ++i)
    kernels.attention_end(states.data() + i * state, out.data() + i * d, d);
  return digest(out.data(), out.size());
}

// Digests of what AVX2 and AVX-512 compute.
TEST(SameBits, AcrossArchitectures) {
  for (const Isa isa : supported_isas()) {
    if (!has_fma(isa)) continue;
    const VectorKernels& kernels = vector_kernels(isa);
    EXPECT_EQ(rows_digest(kernels), 546791695270007300u) << isa_name(isa);
    EXPECT_EQ(attention_digest(kernels, KvType::f16), 10043614009794613711u) << isa_name(isa);
    EXPECT_EQ(attention_digest(kernels, KvType::bf16), 13165331180629427801u) << isa_name(isa);
    EXPECT_EQ(attention_digest(kernels, KvType::f32), 13759908594362045760u) << isa_name(isa);
    EXPECT_EQ(attention_digest(kernels, KvType::q8_0), 881934602256861563u) << isa_name(isa);
  }
}

}  // namespace
}  // namespace argent::cpu
