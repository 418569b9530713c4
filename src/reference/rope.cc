// Rotary position embedding (Su et al. 2021) with the scalings of ggml: linear, per-frequency factors, YaRN (Peng et
// al. 2023).
#include <algorithm>
#include <cmath>
#include <numbers>

#include "reference/ops.h"

namespace argent::reference {
namespace {

// The pair whose wavelength fits `rotations` times into the training context.
double yarn_pair(const Attrs& a, double rotations) {
  return a.n_rot * std::log(a.n_ctx_orig / (rotations * 2 * std::numbers::pi)) / (2 * std::log(double(a.freq_base)));
}

}  // namespace

void rope_table(const Call& call) {
  const Attrs& a = call.attrs;
  std::vector<float> factors(a.n_rot / 2, 1.0f);
  if (call.in.size() == 2) factors = weight_row(*call.in[1].value, 0);
  double low = 0, high = 0, magnitude = a.attn_factor;
  if (a.ext_factor != 0) {
    low = std::max(0.0, std::floor(yarn_pair(a, a.beta_fast)));
    high = std::min(a.n_rot - 1.0, std::ceil(yarn_pair(a, a.beta_slow)));
    magnitude *= 1 + 0.1 * std::log(1 / double(a.freq_scale));
  }
  for (uint32_t r = 0; r < call.out[0].n_rows; ++r) {
    const double position = *call.in[0].i32(r);
    float* out = call.out[0].f32(r);
    for (uint32_t i = 0; i < a.n_rot / 2; ++i) {
      const double extrapolated = position * std::pow(double(a.freq_base), -2.0 * i / a.n_rot) / factors[i];
      double theta = extrapolated * a.freq_scale;
      if (a.ext_factor != 0) {
        const double ramp = 1 - std::clamp((i - low) / std::max(0.001, high - low), 0.0, 1.0);
        theta += (extrapolated - theta) * ramp * a.ext_factor;
      }
      out[2 * i] = float(std::cos(theta) * magnitude);
      out[2 * i + 1] = float(std::sin(theta) * magnitude);
    }
  }
}

void rope(const Call& call) {
  const Attrs& a = call.attrs;
  for (uint32_t r = 0; r < call.out[0].n_rows; ++r)
    for (uint32_t h = 0; h < a.n_head; ++h) {
      const float* x = call.in[0].f32(r) + h * a.d_head;
      const float* table = call.in[1].f32(r);
      float* out = call.out[0].f32(r) + h * a.d_head;
      for (uint32_t i = 0; i < a.n_rot / 2; ++i) {
        const uint32_t first = a.interleaved ? 2 * i : i, second = a.interleaved ? 2 * i + 1 : i + a.n_rot / 2;
        const double x0 = x[first], x1 = x[second], cos = table[2 * i], sin = table[2 * i + 1];
        out[first] = float(x0 * cos - x1 * sin);
        out[second] = float(x0 * sin + x1 * cos);
      }
      for (uint32_t i = a.n_rot; i < a.d_head; ++i) out[i] = x[i];
    }
}

}  // namespace argent::reference
