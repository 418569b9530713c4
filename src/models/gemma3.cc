// Gemma 3 (Gemma team 2025): embeddings scaled by sqrt(n_embd), norms before and after attention and FFN, QK norm,
// GELU, and five sliding-window layers with their own rope base to each full one. The "+1" of its norms is in the
// file's weights.
#include <cmath>

#include "models/blocks.h"

namespace argent {

ValueId build_gemma3(ModelReader& m, const Hparams& h) {
  Builder& g = m.ops();
  const uint32_t window = m.u32_or("attention.sliding_window", 0, 0, kMaxWindow);  // 0: every layer is a full one
  const std::vector<bool> pattern = m.sliding_pattern("attention.sliding_window_pattern", 6, h.n_layer);
  const std::vector<bool> sliding = window ? pattern : std::vector<bool>(h.n_layer, false);
  const float softcap = m.f32_or("final_logit_softcapping", 0.0f, 0.0f, 1e6f);
  // The 27B model, known by its 62 layers, scales queries by the width of a head as if heads filled the row.
  const float scale =
      h.n_layer == 62 ? 1.0f / std::sqrt(float(h.n_embd / h.n_head[0])) : 1.0f / std::sqrt(float(h.d_head));

  Attrs local = h.rope;  // sliding layers: own base, no scaling
  local.freq_base = m.f32_or("rope.freq_base_swa", 10000.0f, 1.0f, 1e12f);
  local.freq_scale = 1.0f;
  const ValueId positions = g.input(Input::positions);
  const ValueId global_table = g.rope_table(positions, kNone, h.rope);
  const ValueId local_table = window ? g.rope_table(positions, kNone, local) : global_table;
  const auto norm = [&](ValueId x, uint32_t i, std::string_view name) {
    return g.rms_norm(x, m.vector(layer_name(i, name), h.n_embd), h.eps);
  };

  ValueId x = g.scale(token_embedding(m, h), std::sqrt(float(h.n_embd)));
  for (uint32_t i = 0; i < h.n_layer; ++i) {
    g.layer(int32_t(i));
    QkvProjection p = qkv_projection(m, h, i, norm(x, i, "attn_norm.weight"));
    qk_norm(m, h, i, p);
    const ValueId table = sliding[i] ? local_table : global_table;
    p.q = g.rope(p.q, table, h.n_head[i], h.rope);
    p.k = g.rope(p.k, table, h.n_head_kv[i], h.rope);
    const ValueId a =
        m.linear(attend(m, h, i, p, sliding[i] ? window : 0, scale), layer_name(i, "attn_output"), h.n_embd);
    x = g.add(norm(a, i, "post_attention_norm.weight"), x);
    const ValueId f = gated_ffn(m, h, i, norm(x, i, "ffn_norm.weight"), Activation::gelu);
    x = g.add(norm(f, i, "post_ffw_norm.weight"), x);
  }
  g.layer(-1);
  return g.softcap(g.matmul(g.rms_norm(x, m.vector("output_norm.weight", h.n_embd), h.eps), output_matrix(m, h)),
                   softcap);
}

}  // namespace argent
