// Matrix products, in two flavours: f32 (weights decoded, products summed in double) and native, which rounds
// activations to int8 or bfloat16 as the kernels do and is the same arithmetic as theirs, bit for bit where they have
// FMA; steps of many rows can be had in halves, as CUDA has them.
#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "base/half.h"
#include "quant/uniform.h"
#include "reference/ops.h"

namespace argent::reference {
namespace {

constexpr uint32_t kGroup = 32;  // activations that share a scale

// A row of activations as the kernels see it (backends/cpu/activations.h states the rule).
struct QuantizedRow {
  std::vector<int16_t> q;
  std::vector<float> scale;  // one a group
};

QuantizedRow quantize(const float* x, uint32_t n) {
  QuantizedRow row{std::vector<int16_t>(n), std::vector<float>(n / kGroup)};
  for (uint32_t g = 0; g < n / kGroup; ++g) {
    float amax = 0;
    bool finite = true;
    for (uint32_t i = g * kGroup; i < (g + 1) * kGroup; ++i) {
      finite = finite && std::isfinite(x[i]);
      amax = std::max(amax, std::fabs(x[i]));
    }
    if (!finite) {
      row.scale[g] = std::numeric_limits<float>::quiet_NaN();
      continue;
    }
    if (amax < 0x1p-100f) continue;
    row.scale[g] = amax / 127.0f;
    const float inverse = 127.0f / amax;
    for (uint32_t i = g * kGroup; i < (g + 1) * kGroup; ++i) row.q[i] = int16_t(std::nearbyint(x[i] * inverse));
  }
  return row;
}

int32_t dot(const int16_t* a, const int16_t* b, uint32_t n) {
  int32_t sum = 0;
  for (uint32_t i = 0; i < n; ++i) sum += int32_t(a[i]) * b[i];
  return sum;
}

int32_t total(const int16_t* a, uint32_t n) {
  int32_t sum = 0;
  for (uint32_t i = 0; i < n; ++i) sum += a[i];
  return sum;
}

// out[r][n] over all rows for quantized weights, in the kernels' order (backends/cpu/matmul-inl.h): exact integer dots,
// a float for each group of 32 columns, the groups one after the other.
void native_row(const Value& w, uint32_t n, const std::vector<QuantizedRow>& x, const Operand& out) {
  const UniformShape shape = uniform_shape(w.format);
  const uint32_t part = uint32_t(shape.group), parts = kGroup / part;  // columns of a weight scale; how many in a group
  std::vector<uint8_t> codes(w.width);
  std::vector<float> scale(w.width / part), min(w.width / part);
  uniform_row(w.format, w.data + n * row_bytes(w.format, w.width), w.width, codes.data(), scale.data(), min.data());
  std::vector<int16_t> q(w.width);
  for (uint32_t i = 0; i < w.width; ++i) q[i] = int16_t(codes[i] - (shape.has_min ? 0 : shape.zero_point));
  for (uint32_t r = 0; r < out.n_rows; ++r) {
    float sum = 0;
    for (uint32_t g = 0; g < w.width / kGroup; ++g) {
      const int16_t *weights = &q[g * kGroup], *acts = &x[r].q[g * kGroup];
      const float *s = &scale[g * parts], *m = &min[g * parts];
      float v = float(dot(weights, acts, part)) * s[0];
      if (parts == 2) v = std::fma(float(dot(weights + part, acts + part, part)), s[1], v);
      for (uint32_t i = 0; shape.has_min && i < parts; ++i) v = std::fma(m[i], float(total(acts + i * part, part)), v);
      sum = std::fma(v, x[r].scale[g], sum);
    }
    out.f32(r)[n] = sum;
  }
}

double dot(const double* a, const double* b, uint32_t n) {
  double sum[8] = {};
  uint32_t i = 0;
  for (; i + 8 <= n; i += 8)
    for (uint32_t k = 0; k < 8; ++k) sum[k] += a[i + k] * b[i + k];
  for (; i < n; ++i) sum[0] += a[i] * b[i];
  return ((sum[0] + sum[1]) + (sum[2] + sum[3])) + ((sum[4] + sum[5]) + (sum[6] + sum[7]));
}

// A row of quantized weights as CUDA's products of many rows round them, times a power of two that is returned:
// backends/cuda/part/kernels/product_halves.cuh states the rule, planes.cuh that of the power of two.
double half_weights(const Value& w, uint32_t n, std::vector<double>& out) {
  const UniformShape shape = uniform_shape(w.format);
  const uint32_t part = uint32_t(shape.group);
  std::vector<uint8_t> codes(w.width);
  std::vector<float> scale(w.width / part), min(w.width / part);
  uniform_row(w.format, w.data + n * row_bytes(w.format, w.width), w.width, codes.data(), scale.data(), min.data());
  const auto exponent = [](const std::vector<float>& of) {
    float most = 0;
    for (const float x : of) most = std::max(most, std::fabs(x));
    return int(std::bit_cast<uint32_t>(most) >> 23) - 127;
  };
  const int least = shape.has_min ? 2 - exponent(min) : 2 + 127;
  const int up = std::clamp(24 + std::min(-10 - exponent(scale), least), -126, 126);
  const uint8_t highest = w.format == Format::q2_k ? 3 : w.format == Format::q4_1 || w.format == Format::q4_k ? 15 : 31;
  out.resize(w.width);
  for (uint32_t i = 0; i < w.width; ++i) {
    const float exact = std::ldexp(scale[i / part], up), rounded = half_to_float(float_to_half(exact));
    double x = std::ldexp(double(rounded) * (codes[i] - (shape.has_min ? 0 : shape.zero_point)), -24);
    if (shape.has_min) {
      const float low = std::fma(min[i / part], std::ldexp(1.0f, up), 0.5f * highest * (exact - rounded));
      x += half_to_float(float_to_half(low * 0x1p-24f));
    }
    out[i] = half_to_float(float_to_half(float(x)));
  }
  return std::ldexp(1.0, up - 24);
}

// Rows of halves times weights that are.
void half_products(const Call& call) {
  const Operand &x = call.in[0], &out = call.out[0];
  const Value& w = *call.in[1].value;
  std::vector<double> rows(uint64_t(x.n_rows) * w.width), inverse(x.n_rows);
  for (uint32_t r = 0; r < x.n_rows; ++r) {
    uint32_t most = 0;
    for (uint32_t i = 0; i < w.width; ++i) most = std::max(most, std::bit_cast<uint32_t>(x.f32(r)[i]) & 0x7fffffff);
    const int up = std::clamp(14 + 127 - int(most >> 23), -126, 126);
    inverse[r] = most < 0x7f800000 ? std::ldexp(1.0, -up) : std::numeric_limits<double>::quiet_NaN();
    for (uint32_t i = 0; i < w.width; ++i)
      rows[uint64_t(r) * w.width + i] = half_to_float(float_to_half(std::ldexp(x.f32(r)[i], up)));
  }
  call.context.each(w.n_rows, [&](uint32_t n) {
    std::vector<double> weights;
    const double up = half_weights(w, n, weights);
    for (uint32_t r = 0; r < out.n_rows; ++r)
      out.f32(r)[n] = float(dot(weights.data(), &rows[uint64_t(r) * w.width], w.width) / up * inverse[r]);
  });
}

float flushed(float x) { return std::fpclassify(x) == FP_SUBNORMAL ? std::copysign(0.0f, x) : x; }

// bf16 weights times activations rounded to bf16 (not flushed yet), in the kernels' order: pairs of columns, the odd
// one first, in two chains, with subnormals taken for zero.
float brain_dot(const float* w, const float* x, uint32_t n) {
  float sum[2] = {};
  const auto add = [&](float& to, uint32_t k) {
    if (k < n) to = flushed(std::fma(flushed(w[k]), flushed(x[k]), to));
  };
  for (uint32_t k = 0; k < n; k += 2) {
    float& chain = sum[k / 2 % 2];
    add(chain, k + 1);
    add(chain, k);
  }
  return flushed(sum[0] + sum[1]);
}

}  // namespace

void matmul(const Call& call) {
  const Operand &x = call.in[0], &out = call.out[0];
  const Value& w = *call.in[1].value;
  if (call.context.activations == ActivationMode::native && w.format == Format::bf16) {
    std::vector<float> rows(uint64_t(x.n_rows) * w.width);
    for (uint64_t i = 0; i < rows.size(); ++i) rows[i] = bf16_to_float(float_to_bf16(x.f32(0)[i]));
    call.context.each(w.n_rows, [&](uint32_t n) {
      const std::vector<float> decoded = weight_row(w, n);
      for (uint32_t r = 0; r < out.n_rows; ++r)
        out.f32(r)[n] = brain_dot(decoded.data(), &rows[uint64_t(r) * w.width], w.width);
    });
    return;
  }
  const bool floats = w.format == Format::f32 || w.format == Format::f16 || w.format == Format::bf16;
  const bool native = call.context.activations == ActivationMode::native;
  if (native && x.n_rows > call.context.int8_rows && !floats) return half_products(call);
  if (native && !floats) {
    std::vector<QuantizedRow> rows(x.n_rows);
    for (uint32_t r = 0; r < x.n_rows; ++r) rows[r] = quantize(x.f32(r), w.width);
    call.context.each(w.n_rows, [&](uint32_t n) { native_row(w, n, rows, out); });
    return;
  }
  std::vector<double> rows(uint64_t(x.n_rows) * w.width);
  for (uint64_t i = 0; i < rows.size(); ++i) rows[i] = x.f32(0)[i];
  call.context.each(w.n_rows, [&](uint32_t n) {
    const std::vector<float> decoded = weight_row(w, n);
    const std::vector<double> row(decoded.begin(), decoded.end());
    for (uint32_t r = 0; r < out.n_rows; ++r)
      out.f32(r)[n] = float(dot(row.data(), &rows[uint64_t(r) * w.width], w.width));
  });
}

}  // namespace argent::reference
