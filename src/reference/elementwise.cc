#include <cmath>
#include <cstring>
#include <numbers>

#include "graph/storage.h"
#include "reference/ops.h"

namespace argent::reference {
namespace {

// out[i] = f(x[i]) over all rows; out may be x.
template <class F>
void map(const Call& call, const F& f) {
  for (uint32_t r = 0; r < call.out[0].n_rows; ++r) {
    const float* x = call.in[0].f32(r);
    float* out = call.out[0].f32(r);
    for (uint32_t i = 0; i < call.out[0].value->width; ++i) out[i] = float(f(double(x[i])));
  }
}

// out[i] = f(a[i], b[i]); out may be a.
template <class F>
void zip(const Call& call, const F& f) {
  for (uint32_t r = 0; r < call.out[0].n_rows; ++r) {
    const float *a = call.in[0].f32(r), *b = call.in[1].f32(r);
    float* out = call.out[0].f32(r);
    for (uint32_t i = 0; i < call.out[0].value->width; ++i) out[i] = float(f(double(a[i]), double(b[i])));
  }
}

// out[i] = f(x[i], v[i mod width of v]); out may be x.
template <class F>
void zip_vector(const Call& call, const F& f) {
  const std::vector<float> v = weight_row(*call.in[1].value, 0);
  for (uint32_t r = 0; r < call.out[0].n_rows; ++r) {
    const float* x = call.in[0].f32(r);
    float* out = call.out[0].f32(r);
    for (uint32_t i = 0; i < call.out[0].value->width; ++i) out[i] = float(f(double(x[i]), double(v[i % v.size()])));
  }
}

}  // namespace

std::vector<float> weight_row(const Value& weight, uint32_t row) {
  std::vector<float> out(weight.width);
  decode_row(weight.format, weight.data + row * row_bytes(weight.format, weight.width), out.data(), weight.width);
  return out;
}

void embed(const Call& call) {
  for (uint32_t r = 0; r < call.out[0].n_rows; ++r) {
    const std::vector<float> row = weight_row(*call.in[1].value, uint32_t(*call.in[0].i32(r)));
    std::memcpy(call.out[0].f32(r), row.data(), row.size() * sizeof(float));
  }
}

void add(const Call& call) {
  zip(call, [](double a, double b) { return a + b; });
}
void mul(const Call& call) {
  zip(call, [](double a, double b) { return a * b; });
}
void add_bias(const Call& call) {
  zip_vector(call, [](double x, double v) { return x + v; });
}
void mul_row(const Call& call) {
  zip_vector(call, [](double x, double v) { return x * v; });
}
void scale(const Call& call) {
  map(call, [s = double(call.attrs.scale)](double x) { return x * s; });
}
void silu(const Call& call) {
  map(call, [](double x) { return x / (1 + std::exp(-x)); });
}
void gelu(const Call& call) {
  map(call,
      [](double x) { return 0.5 * x * (1 + std::tanh(std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x))); });
}
void sigmoid(const Call& call) {
  map(call, [](double x) { return 1 / (1 + std::exp(-x)); });
}
void softcap(const Call& call) {
  map(call, [c = double(call.attrs.softcap)](double x) { return c == 0 ? x : c * std::tanh(x / c); });
}

void rms_norm(const Call& call) {
  const uint32_t width = call.out[0].value->width, group = call.attrs.group ? call.attrs.group : width;
  for (uint32_t r = 0; r < call.out[0].n_rows; ++r)
    for (uint32_t first = 0; first < width; first += group) {
      const float* x = call.in[0].f32(r) + first;
      float* out = call.out[0].f32(r) + first;
      double squares = 0;
      for (uint32_t i = 0; i < group; ++i) squares += double(x[i]) * x[i];
      const double root = std::sqrt(squares / group + double(call.attrs.eps));
      for (uint32_t i = 0; i < group; ++i) out[i] = float(x[i] / root);
    }
}

void gather_rows(const Call& call) {
  for (uint32_t r = 0; r < call.out[0].n_rows; ++r)
    std::memcpy(call.out[0].f32(r), call.in[0].f32(uint32_t(*call.in[1].i32(r))),
                call.out[0].value->width * sizeof(float));
}

void copy(const Call& call) {
  const Operand &in = call.in[0], &out = call.out[0];
  std::memmove(out.data, in.data, activation_row_bytes(*in.value) * out.n_rows);
}

}  // namespace argent::reference
