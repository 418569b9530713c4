// The angle that each pair of RoPE turns by from one position to the next, in double: a few calls a step, shared by all
// layers, cost less than the error that f32 angles bring at long contexts.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numbers>
#include <vector>

#include "graph/graph.h"

namespace argent {

class RopeFrequencies {
 public:
  // factors: n_rot/2 divisors of the frequencies, or null.
  RopeFrequencies(const Attrs& a, const float* factors) : radians_(a.n_rot / 2), magnitude_(a.attn_factor) {
    // YaRN (Peng et al. 2023): pairs that turn more than beta_fast times over the original context keep their
    // frequency, those below beta_slow are interpolated, and between them the two are mixed along a ramp.
    const auto correction = [&](double turns) {
      return a.n_rot * std::log(a.n_ctx_orig / (turns * 2 * std::numbers::pi)) / (2 * std::log(double(a.freq_base)));
    };
    double low = 0, high = 0;
    if (a.ext_factor != 0.0f) {
      low = std::max(0.0, std::floor(correction(a.beta_fast)));
      high = std::min(a.n_rot - 1.0, std::ceil(correction(a.beta_slow)));
      magnitude_ *= 1.0 + 0.1 * std::log(1.0 / a.freq_scale);
    }
    for (size_t i = 0; i < radians_.size(); ++i) {
      const double extrapolated =
          std::pow(double(a.freq_base), -2.0 * double(i) / a.n_rot) / (factors ? double(factors[i]) : 1.0);
      const double interpolated = a.freq_scale * extrapolated;
      double mix = 0;
      if (a.ext_factor != 0.0f)
        mix = a.ext_factor * (1.0 - std::min(1.0, std::max(0.0, (double(i) - low) / std::max(0.001, high - low))));
      radians_[i] = interpolated * (1.0 - mix) + extrapolated * mix;
    }
  }

  // n_rot floats: cos and sin of each pair, one after the other.
  void fill(int32_t position, float* out) const {
    for (size_t i = 0; i < radians_.size(); ++i) {
      const double angle = position * radians_[i];
      out[2 * i] = float(std::cos(angle) * magnitude_);
      out[2 * i + 1] = float(std::sin(angle) * magnitude_);
    }
  }

  // The same angles for devices without double: fractions of a turn in units of 2^-64. Times a position, modulo 2^64,
  // they are right to 1e-10 of a turn at position 1,000,000.
  std::vector<uint64_t> turns() const {
    std::vector<uint64_t> out;
    for (const double radians : radians_) {
      const double turns = radians / (2 * std::numbers::pi), fraction = turns - std::floor(turns);
      // Below 1 for all but tiny negative angles, where it rounds to a whole turn. A factor of 0 in a file makes an
      // angle that is no number, which turns nothing here.
      out.push_back(fraction < 1 ? uint64_t(fraction * 0x1p64) : 0);
    }
    return out;
  }
  const std::vector<double>& radians() const { return radians_; }  // by pair
  double magnitude() const { return magnitude_; }

 private:
  std::vector<double> radians_;
  double magnitude_;
};

}  // namespace argent
