// Qwen2 and Qwen2.5 (Qwen team 2024): as llama, with biases on q, k and v and rotary pairs half a head apart.
#include "models/blocks.h"

namespace argent {

ValueId build_qwen2(ModelReader& m, const Hparams& h) {
  return plain_decoder(m, h, {.interleaved_rope = false, .norm_qk = false, .qkv_bias = ModelReader::Bias::required});
}

}  // namespace argent
