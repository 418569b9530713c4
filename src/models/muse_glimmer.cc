// Muse Glimmer: a normalised embedding, QK norm (the query scale is in its weight), a sigmoid gate on the attention's
// output, norms before and after attention and FFN (the latter with their own epsilon), and rotary positions on the
// sliding-window layers only.
#include <cmath>

#include "models/blocks.h"

namespace argent {

ValueId build_muse_glimmer(ModelReader& m, const Hparams& h) {
  Builder& g = m.ops();
  constexpr float kPostNormEps = 1e-8f;
  const uint32_t window = m.u32("attention.sliding_window", 1, kMaxWindow);
  const std::vector<bool> sliding = m.sliding_pattern("attention.sliding_window_pattern", 4, h.n_layer);
  const float softcap = m.f32_or("final_logit_softcapping", 0.0f, 0.0f, 1e6f);
  const float logit_scale = m.f32("logit_scale", -1e6f, 1e6f);
  if (h.rope.freq_scale != 1.0f)
    m.fail_with(m.refuse("rope.scaling.factor", 1.0f / h.rope.freq_scale, "1: this architecture has no rope scaling"));

  Attrs rope = h.rope;
  rope.interleaved = true;
  rope.freq_base = m.f32_or("rope.freq_base_swa", rope.freq_base, 1.0f, 1e12f);
  const ValueId table = g.rope_table(g.input(Input::positions), kNone, rope);
  const auto norm = [&](ValueId x, uint32_t i, std::string_view name, float eps) {
    return g.rms_norm(x, m.vector(layer_name(i, name), h.n_embd), eps);
  };

  ValueId x = g.rms_norm(token_embedding(m, h), kNone, h.eps);
  for (uint32_t i = 0; i < h.n_layer; ++i) {
    g.layer(int32_t(i));
    const ValueId normed = norm(x, i, "attn_norm.weight", h.eps);
    QkvProjection p = qkv_projection(m, h, i, normed);
    qk_norm(m, h, i, p);
    const ValueId gate = m.linear(normed, layer_name(i, "attn_gate"), h.n_head[i] * h.d_value);
    if (sliding[i]) {
      p.q = g.rope(p.q, table, h.n_head[i], rope);
      p.k = g.rope(p.k, table, h.n_head_kv[i], rope);
    }
    ValueId a = attend(m, h, i, p, sliding[i] ? window : 0, 1.0f / std::sqrt(float(h.d_head)));
    a = m.linear(g.mul(a, g.sigmoid(gate)), layer_name(i, "attn_output"), h.n_embd);
    x = g.add(norm(a, i, "post_attention_norm.weight", kPostNormEps), x);
    const ValueId f = gated_ffn(m, h, i, norm(x, i, "ffn_norm.weight", h.eps), Activation::silu);
    x = g.add(norm(f, i, "post_ffw_norm.weight", kPostNormEps), x);
  }
  g.layer(-1);
  const ValueId out =
      g.matmul(g.rms_norm(x, m.vector("output_norm.weight", h.n_embd), h.eps), m.matrix("output.weight", 0, h.n_embd));
  return g.softcap(g.scale(out, logit_scale), softcap);
}

}  // namespace argent
