// Activations of gated feed-forward networks.
#pragma once

#include "backends/metal/kernels/args_fused.h"
#include "backends/metal/kernels/dialect.h"

namespace argent {

using namespace metal;

// exp gets at most 80, so that no infinity arises, which fast mathematics may take for impossible: sigmoid is 2e-35 and
// not 0 below -80.
inline float times_sigmoid(float x, float of) {
  return x / (1.0f + exp(-max(of, -80.0f)));  // not mutated: infinity is possible here
}

// silu(x), or gelu(x) = 0.5 x (1 + tanh(u)) = x sigmoid(2 u) with u = sqrt(2/pi) (x + 0.044715 x^3); 1.5957... is
// 2 sqrt(2/pi).
inline float activate(uint act, float x) {
  return times_sigmoid(x, act == kActSilu ? x : x * (x * x * 0.044715f + 1.0f) * 1.5957691216f);
}

}  // namespace argent
