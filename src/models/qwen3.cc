// Qwen3 (Qwen team 2025): as qwen2 without biases, with an RMS norm on each query and key head before the rotation.
#include "models/blocks.h"

namespace argent {

ValueId build_qwen3(ModelReader& m, const Hparams& h) {
  return plain_decoder(m, h, {.interleaved_rope = false, .norm_qk = true});
}

}  // namespace argent
