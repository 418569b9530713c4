// Matrix products, in two flavours: f32 (weights decoded, products summed in double) and native, which rounds
// activations to int8 or bfloat16 as the kernels do and is the same arithmetic as theirs, bit for bit where they have
// FMA.
#include <algorithm>
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

double dot(const double* a, const double* b, uint32_t n) {
  double sum[8] = {};
  uint32_t i = 0;
  for (; i + 8 <= n; i += 8)
    for (uint32_t k = 0; k < 8; ++k) sum[k] += a[i + k] * b[i + k];
  for (; i < n; ++i) sum[0] += a[i] * b[i];
  return ((sum[0] + sum[1]) + (sum[2] + sum[3])) + ((sum[4] + sum[5]) + (sum[6] + sum[7]));
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
  if (call.context.activations == ActivationMode::native && x.n_rows <= call.context.int8_rows && !floats) {
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
