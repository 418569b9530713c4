// What the tests of packing and of the matrix kernels share: random weights in a format's bytes, memory that faults at
// its end, and the arithmetic of matmul-inl.h written down plainly.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "backends/cpu/matmul.h"
#include "backends/cpu/pack.h"
#include "base/half.h"
#include "quant/formats.h"
#include "quant/uniform.h"
#include "quant/walk.h"

namespace argent::cpu {

inline constexpr float kUntouched = 12345.5f;  // where nothing may be written

inline bool same(float a, float b) {
  return std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b) || (a != a && b != b);
}

inline std::vector<Format> all_formats() {
  std::vector<Format> formats;
#define FORMAT(name, NAME, id, block, bytes) formats.push_back(Format::name);
#define KNOWN(NAME, id, block, bytes)
#include "quant/formats.def"
#undef FORMAT
#undef KNOWN
  return formats;
}

inline std::vector<Isa> supported_isas() {
  std::vector<Isa> isas;
  for (const Isa isa : kIsas)
    if (isa_supported(isa)) isas.push_back(isa);
  return isas;
}

// n elements that end where an inaccessible page begins, so that any read or write behind them faults.
template <class T>
class Guarded {
 public:
  explicit Guarded(size_t n, uint8_t fill = 0xff) {
    const size_t page = size_t(sysconf(_SC_PAGESIZE)), bytes = n * sizeof(T), body = (bytes + page - 1) / page * page;
    length_ = body + page;
    map_ = static_cast<uint8_t*>(mmap(nullptr, length_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    mprotect(map_ + body, page, PROT_NONE);
    std::memset(map_, fill, body);
    data_ = reinterpret_cast<T*>(map_ + body - bytes);
  }
  ~Guarded() { munmap(map_, length_); }
  Guarded(const Guarded&) = delete;
  T* data() const { return data_; }
  T& operator[](size_t i) const { return data_[i]; }

 private:
  uint8_t* map_;
  size_t length_;
  T* data_;
};

// Where a block has its halves, and about how large the weights' scale factors in front of d and m are.
struct Halves {
  int d = -1, m = -1;
  float size = 1;
};

inline Halves halves_of(Format format) {
  switch (format) {
    case Format::q4_0:
      return {offsetof(block_q4_0, d)};
    case Format::q4_1:
      return {offsetof(block_q4_1, d), offsetof(block_q4_1, m)};
    case Format::q5_0:
      return {offsetof(block_q5_0, d)};
    case Format::q5_1:
      return {offsetof(block_q5_1, d), offsetof(block_q5_1, m)};
    case Format::q8_0:
      return {offsetof(block_q8_0, d)};
    case Format::q2_k:
      return {offsetof(block_q2_k, d), offsetof(block_q2_k, dmin), 0.1f};
    case Format::q3_k:
      return {offsetof(block_q3_k, d), -1, 0.05f};
    case Format::q4_k:
      return {offsetof(block_q4_k, d), offsetof(block_q4_k, dmin), 0.02f};
    case Format::q5_k:
      return {offsetof(block_q5_k, d), offsetof(block_q5_k, dmin), 0.02f};
    case Format::q6_k:
      return {offsetof(block_q6_k, d), -1, 0.01f};
    case Format::iq4_nl:
      return {offsetof(block_iq4_nl, d)};
    case Format::iq4_xs:
      return {offsetof(block_iq4_xs, d), -1, 0.05f};
    default:
      return {};
  }
}

// Random blocks; all bytes random where `hostile`, so that scales may be infinite, NaN or subnormal.
inline void random_rows(Format format, uint8_t* rows, uint64_t n_rows, uint64_t n_cols, uint32_t seed,
                        bool hostile = false) {
  std::mt19937 random(seed);
  const uint64_t bytes = n_rows * row_bytes(format, n_cols), block = info(format).bytes;
  for (uint64_t i = 0; i < bytes; ++i) rows[i] = uint8_t(random() >> 13);
  if (hostile) return;
  std::uniform_real_distribution<float> uniform(-0.02f, 0.02f);
  const Halves halves = halves_of(format);
  for (uint8_t* b = rows; b < rows + bytes; b += block) {
    for (const int at : {halves.d, halves.m}) {
      if (at < 0) continue;
      const uint16_t h = float_to_half(uniform(random) * halves.size);
      std::memcpy(b + at, &h, 2);
    }
    const float x = uniform(random);
    const uint16_t half = float_to_half(x), brain = float_to_bf16(x);
    if (format == Format::f32) std::memcpy(b, &x, 4);
    if (format == Format::f16) std::memcpy(b, &half, 2);
    if (format == Format::bf16) std::memcpy(b, &brain, 2);
    if (format == Format::mxfp4) *b = uint8_t(110 + random() % 12);
  }
}

inline std::vector<float> random_floats(size_t n, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.0f, 1.0f);
  std::vector<float> x(n);
  for (float& v : x) v = normal(random);
  return x;
}

inline QuantGroup reference_group(const float* x) {
  QuantGroup a = {};
  float amax = 0;
  bool finite = true;
  for (uint32_t i = 0; i < kGroup; ++i) finite &= std::isfinite(x[i]);
  for (uint32_t i = 0; finite && i < kGroup; ++i) amax = std::max(amax, std::fabs(x[i]));
  a.scale = amax / 127.0f;
  if (!finite) a.scale = std::numeric_limits<float>::quiet_NaN();
  if (finite && amax < 0x1p-100f) a.scale = 0;
  int sums[2] = {0, 0};
  if (finite && amax >= 0x1p-100f) {
    const float inverse = 127.0f / amax;
    for (uint32_t i = 0; i < kGroup; ++i) {
      a.q[i] = int8_t(std::nearbyintf(x[i] * inverse));
      sums[i / 16] += a.q[i];
    }
  }
  for (int h = 0; h < 2; ++h) a.half_sum[h] = float(sums[h]), a.neg_half_sum[h] = -sums[h];
  a.sum = float(sums[0] + sums[1]);
  a.neg_sum = -sums[0] - sums[1];
  return a;
}

// One output in the fixed order, and the sum of the magnitudes of what was added (for the baseline's tolerance).
struct Output {
  float value = 0;
  double magnitude = 0;
};

inline Output reference_q8(Format format, const uint8_t* row, uint32_t n_cols, const QuantGroup* acts) {
  const UniformShape shape = uniform_shape(format);
  std::vector<uint8_t> q(n_cols);
  std::vector<float> scale(n_cols / shape.group), min(n_cols / shape.group);
  uniform_row(format, row, n_cols, q.data(), scale.data(), min.data());
  const int parts = int(kGroup) / shape.group;
  Output out;
  for (uint32_t g = 0; g < n_cols / kGroup; ++g) {
    const QuantGroup& a = acts[g];
    float v = 0;
    for (int part = 0; part < parts; ++part) {
      int32_t sum = 0;
      for (int i = 0; i < shape.group; ++i) {
        const int at = part * shape.group + i;
        sum += (q[g * kGroup + at] - shape.zero_point) * a.q[at];
      }
      const float s = scale[g * parts + part];
      v = part == 0 ? float(sum) * s : std::fma(float(sum), s, v);
      out.magnitude += std::fabs(double(sum) * s * a.scale);
    }
    for (int part = 0; shape.has_min && part < parts; ++part) {
      const float sum = parts == 1 ? a.sum : a.half_sum[part];
      v = std::fma(min[g * parts + part], sum, v);
      out.magnitude += std::fabs(double(min[g * parts + part]) * sum * a.scale);
    }
    out.value = std::fma(v, a.scale, out.value);
  }
  return out;
}

inline Output reference_f32(Format format, const uint8_t* row, uint32_t n_cols, const float* x) {
  std::vector<float> w(n_cols);
  decode_row(format, row, w.data(), n_cols);
  float sums[2] = {0, 0};
  Output out;
  for (uint32_t k = 0; k < n_cols; ++k) {
    sums[k % 2] = std::fma(w[k], x[k], sums[k % 2]);
    out.magnitude += std::fabs(double(w[k]) * x[k]);
  }
  out.value = sums[0] + sums[1];
  return out;
}

// Subnormals flushed after each product; odd columns of a pair before even ones.
inline Output reference_bf16(const uint8_t* row, uint32_t n_cols, const float* x) {
  const auto flushed = [](float v) { return std::fpclassify(v) == FP_SUBNORMAL ? std::copysign(0.0f, v) : v; };
  float sums[2] = {0, 0};
  Output out;
  for (uint32_t pair = 0; pair < (n_cols + 1) / 2; ++pair)
    for (const uint32_t k : {2 * pair + 1, 2 * pair}) {
      if (k >= n_cols) continue;
      uint16_t bits;
      std::memcpy(&bits, row + 2 * k, 2);
      const float w = flushed(bf16_to_float(bits)), a = flushed(bf16_to_float(float_to_bf16(x[k])));
      sums[pair % 2] = flushed(std::fma(w, a, sums[pair % 2]));
      out.magnitude += std::fabs(double(w) * a);
    }
  out.value = flushed(sums[0] + sums[1]);
  return out;
}

}  // namespace argent::cpu
