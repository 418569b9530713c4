// Llama 1 to 3, SmolLM, Mistral and their relatives (Touvron et al. 2023): RMS norm, rotary positions on neighbouring
// pairs, grouped-query attention, SwiGLU. Llama 3's frequency factors come as the tensor rope_freqs.
#include "models/blocks.h"

namespace argent {

ValueId build_llama(ModelReader& m, const Hparams& h) {
  m.expect("expert_count", 0);
  m.expect("expert_used_count", 0);
  if (h.rope.n_rot != h.d_head)
    m.fail_with(m.refuse("rope.dimension_count", h.rope.n_rot, fmt::format("the size of a head, {}", h.d_head)));
  return plain_decoder(m, h, {.interleaved_rope = true, .norm_qk = false});
}

}  // namespace argent
