#include "models/blocks.h"

#include <cmath>

namespace argent {

ValueId token_embedding(ModelReader& m, const Hparams& h) {
  return m.ops().embed(m.ops().input(Input::tokens), m.matrix("token_embd.weight", 0, h.n_embd));
}

ValueId output_matrix(ModelReader& m, const Hparams& h) {
  return m.matrix(m.has_tensor("output.weight") ? "output.weight" : "token_embd.weight", 0, h.n_embd);
}

QkvProjection qkv_projection(ModelReader& m, const Hparams& h, uint32_t layer, ValueId x, ModelReader::Bias bias) {
  const uint32_t q = h.n_head[layer] * h.d_head, k = h.n_head_kv[layer] * h.d_head, v = h.n_head_kv[layer] * h.d_value;
  if (const std::string fused = layer_name(layer, "attn_qkv"); m.has_tensor(fused + ".weight"))
    return {m.linear_part(x, fused, 0, q, q + k + v, bias), m.linear_part(x, fused, q, k, q + k + v, bias),
            m.linear_part(x, fused, q + k, v, q + k + v, bias)};
  return {m.linear(x, layer_name(layer, "attn_q"), q, bias), m.linear(x, layer_name(layer, "attn_k"), k, bias),
          m.linear(x, layer_name(layer, "attn_v"), v, bias)};
}

void qk_norm(ModelReader& m, const Hparams& h, uint32_t layer, QkvProjection& p) {
  p.q = m.ops().rms_norm(p.q, m.vector(layer_name(layer, "attn_q_norm.weight"), h.d_head), h.eps, h.d_head);
  p.k = m.ops().rms_norm(p.k, m.vector(layer_name(layer, "attn_k_norm.weight"), h.d_head), h.eps, h.d_head);
}

ValueId attend(ModelReader& m, const Hparams& h, uint32_t layer, const QkvProjection& p, uint32_t window, float scale) {
  const ValueId cache = m.ops().kv({layer, h.n_head_kv[layer], h.d_head, h.d_value, window});
  m.ops().kv_store(p.k, p.v, cache);
  return m.ops().attention(p.q, cache, h.n_head[layer], scale);
}

ValueId gated_ffn(ModelReader& m, const Hparams& h, uint32_t layer, ValueId x, Activation act) {
  const ValueId gate = m.linear(x, layer_name(layer, "ffn_gate"), h.n_ff[layer]);
  const ValueId up = m.linear(x, layer_name(layer, "ffn_up"), h.n_ff[layer]);
  const ValueId active = act == Activation::silu ? m.ops().silu(gate) : m.ops().gelu(gate);
  return m.linear(m.ops().mul(active, up), layer_name(layer, "ffn_down"), h.n_embd);
}

ValueId plain_decoder(ModelReader& m, const Hparams& h, const PlainDecoder& options) {
  Builder& g = m.ops();
  Attrs rope = h.rope;
  rope.interleaved = options.interleaved_rope;
  const ValueId table =
      g.rope_table(g.input(Input::positions), m.optional_vector("rope_freqs.weight", rope.n_rot / 2), rope);
  const float scale = m.f32_or("attention.scale", 1.0f / std::sqrt(float(h.d_head)), 1e-6f, 1e6f);

  ValueId x = token_embedding(m, h);
  for (uint32_t i = 0; i < h.n_layer; ++i) {
    g.layer(int32_t(i));
    QkvProjection p = qkv_projection(
        m, h, i, g.rms_norm(x, m.vector(layer_name(i, "attn_norm.weight"), h.n_embd), h.eps), options.qkv_bias);
    if (options.norm_qk) qk_norm(m, h, i, p);
    p.q = g.rope(p.q, table, h.n_head[i], rope);
    p.k = g.rope(p.k, table, h.n_head_kv[i], rope);
    x = g.add(m.linear(attend(m, h, i, p, 0, scale), layer_name(i, "attn_output"), h.n_embd), x);
    const ValueId normed = g.rms_norm(x, m.vector(layer_name(i, "ffn_norm.weight"), h.n_embd), h.eps);
    x = g.add(gated_ffn(m, h, i, normed, Activation::silu), x);
  }
  g.layer(-1);
  return g.matmul(g.rms_norm(x, m.vector("output_norm.weight", h.n_embd), h.eps), output_matrix(m, h));
}

}  // namespace argent
