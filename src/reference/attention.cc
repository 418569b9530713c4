#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/half.h"
#include "quant/q8_0.h"
#include "reference/ops.h"

namespace argent::reference {
namespace {

// Where position p of the sequence lies: its row among those of the layer's pool.
uint64_t pool_row(const StepSequence& sequence, const KvLayer& layer, uint32_t position) {
  const int32_t block = sequence.tables[layer.group][position / kKvBlockTokens];
  return uint64_t(block) * kKvBlockTokens + position % kKvBlockTokens;
}

block_q8_0 quantize(const float* x) {
  float amax = 0;
  bool finite = true;
  for (uint32_t i = 0; i < kKvGroup; ++i)
    finite = finite && std::isfinite(x[i]), amax = std::max(amax, std::fabs(x[i]));
  block_q8_0 block = {finite ? float_to_half(amax / 127) : float_to_half(NAN), {}};
  if (!finite || block.d == 0) return block;
  const float inverse = 127 / amax;
  for (uint32_t i = 0; i < kKvGroup; ++i) block.qs[i] = i8(std::nearbyint(x[i] * inverse));
  return block;
}

void store(const float* row, uint32_t n, KvType type, uint8_t* to) {
  if (type == KvType::f32) {
    std::memcpy(to, row, 4 * uint64_t(n));
  } else if (type == KvType::q8_0) {
    for (uint32_t i = 0; i < n; i += kKvGroup, to += sizeof(block_q8_0)) {
      const block_q8_0 block = quantize(row + i);
      std::memcpy(to, &block, sizeof block);
    }
  } else {
    for (uint32_t i = 0; i < n; ++i) {
      const uint16_t x = type == KvType::f16 ? float_to_half(row[i]) : float_to_bf16(row[i]);
      std::memcpy(to + 2 * i, &x, 2);
    }
  }
}

void load(const uint8_t* from, uint32_t n, KvType type, double* row) {
  for (uint32_t i = 0; i < n; ++i) {
    if (type == KvType::f32) {
      float value;
      std::memcpy(&value, from + 4 * i, 4);
      row[i] = value;
    } else if (type == KvType::q8_0) {
      block_q8_0 block;
      std::memcpy(&block, from + i / kKvGroup * sizeof block, sizeof block);
      row[i] = q8_0_value(half_to_float(block.d), block.qs[i % kKvGroup]);
    } else {
      uint16_t x;
      std::memcpy(&x, from + 2 * i, 2);
      row[i] = type == KvType::f16 ? half_to_float(x) : bf16_to_float(x);
    }
  }
}

// K and V of a run of positions, one after the other.
struct Cached {
  uint32_t first = 0;
  std::vector<double> k, v;
};

Cached load_positions(const StepSequence& sequence, const KvLayer& layer, const Attrs& a, uint32_t first,
                      uint32_t end) {
  const uint32_t k_width = a.n_head_kv * a.d_head, v_width = a.n_head_kv * a.d_value;
  Cached cached{first, std::vector<double>(uint64_t(end - first) * k_width),
                std::vector<double>(uint64_t(end - first) * v_width)};
  for (uint32_t p = first; p < end; ++p) {
    const uint64_t at = pool_row(sequence, layer, p);
    load(layer.k + at * kv_bytes_of(layer.type_k, k_width), k_width, layer.type_k,
         &cached.k[uint64_t(p - first) * k_width]);
    load(layer.v + at * kv_bytes_of(layer.type_v, v_width), v_width, layer.type_v,
         &cached.v[uint64_t(p - first) * v_width]);
  }
  return cached;
}

// A query head as kernels multiply it with q8_0 keys (docs/decisions/0006): int16 in groups of 32.
void round_to_int16(std::vector<double>& query) {
  for (size_t first = 0; first < query.size(); first += kKvGroup) {
    float amax = 0;
    bool finite = true;
    for (size_t d = first; d < first + kKvGroup; ++d)
      finite = finite && std::isfinite(query[d]), amax = std::max(amax, std::fabs(float(query[d])));
    const float scale = !finite ? NAN : amax < 0x1p-100f ? 0 : amax / 32767, inverse = scale > 0 ? 32767 / amax : 0;
    for (size_t d = first; d < first + kKvGroup; ++d)
      query[d] = double(scale) * (scale > 0 ? std::nearbyint(float(query[d]) * inverse) : 1);
  }
}

uint32_t first_visible(uint32_t position, uint32_t window) {
  return window && position >= window ? position - window + 1 : 0;
}

}  // namespace

void kv_store(const Call& call) {
  const KvLayer& layer = *call.in[2].kv;
  const Step& step = call.context.step;
  for (uint32_t r = 0; r < call.in[0].n_rows; ++r) {
    const uint64_t at = pool_row(step.sequences[step.row_sequence[r]], layer, uint32_t(step.positions[r]));
    const uint32_t k_width = call.in[0].value->width, v_width = call.in[1].value->width;
    store(call.in[0].f32(r), k_width, layer.type_k, layer.k + at * kv_bytes_of(layer.type_k, k_width));
    store(call.in[1].f32(r), v_width, layer.type_v, layer.v + at * kv_bytes_of(layer.type_v, v_width));
  }
}

void attention(const Call& call) {
  const Attrs& a = call.attrs;
  const Operand &q = call.in[0], &out = call.out[0];
  const Step& step = call.context.step;
  const uint32_t k_width = a.n_head_kv * a.d_head, v_width = a.n_head_kv * a.d_value;

  std::vector<Cached> cached(step.sequences.size());
  for (size_t s = 0; s < cached.size(); ++s) {
    const StepSequence& sequence = step.sequences[s];
    cached[s] = load_positions(sequence, *call.in[1].kv, a, first_visible(sequence.length, a.window),
                               sequence.length + sequence.n_rows);
  }

  call.context.each(out.n_rows * a.n_head, [&](uint32_t i) {
    const uint32_t r = i / a.n_head, h = i % a.n_head, h_kv = h / (a.n_head / a.n_head_kv);
    const uint32_t row = call.context.token_row(*q.value, r), position = uint32_t(step.positions[row]);
    const Cached& kv = cached[step.row_sequence[row]];
    const uint32_t first = first_visible(position, a.window);
    std::vector<double> query(q.f32(r) + h * a.d_head, q.f32(r) + (h + 1) * a.d_head);
    if (call.context.activations == ActivationMode::native && call.in[1].kv->type_k == KvType::q8_0)
      round_to_int16(query);

    std::vector<double> p(position + 1 - first);
    double best = -INFINITY;
    for (uint32_t j = 0; j < p.size(); ++j) {
      const double* key = &kv.k[uint64_t(first + j - kv.first) * k_width + h_kv * a.d_head];
      double score = 0;
      for (uint32_t d = 0; d < a.d_head; ++d) score += query[d] * key[d];
      score *= a.scale;
      if (a.softcap != 0) score = a.softcap * std::tanh(score / a.softcap);
      p[j] = score;
      best = std::max(best, score);
    }
    double sum = 0;
    for (double& x : p) sum += x = std::exp(x - best);
    std::vector<double> mixed(a.d_value, 0.0);
    for (uint32_t j = 0; j < p.size(); ++j) {
      const double* value = &kv.v[uint64_t(first + j - kv.first) * v_width + h_kv * a.d_value];
      for (uint32_t d = 0; d < a.d_value; ++d) mixed[d] += p[j] * value[d];
    }
    for (uint32_t d = 0; d < a.d_value; ++d) out.f32(r)[h * a.d_value + d] = float(mixed[d] / sum);
  });
}

}  // namespace argent::reference
