// Pieces that architectures share, composed of ops.
#pragma once

#include "models/arch.h"

namespace argent {

inline std::string layer_name(uint32_t layer, std::string_view part) { return fmt::format("blk.{}.{}", layer, part); }

// token_embd.weight: [n_vocab][n_embd]; its rows are the vocabulary.
ValueId token_embedding(ModelReader& m, const Hparams& h);
// output.weight, or the embedding where the file has none (tied).
ValueId output_matrix(ModelReader& m, const Hparams& h);

struct QkvProjection {
  ValueId q, k, v;
};
// attn_q, attn_k, attn_v of a layer, or the three as the rows of one attn_qkv.
QkvProjection qkv_projection(ModelReader& m, const Hparams& h, uint32_t layer, ValueId x,
                             ModelReader::Bias bias = ModelReader::Bias::optional);
// RMS norm of each head with attn_q_norm and attn_k_norm.
void qk_norm(ModelReader& m, const Hparams& h, uint32_t layer, QkvProjection& p);

// Stores k and v, attends with q over the cache, window 0 = all; returns [rows][n_head*d_value].
ValueId attend(ModelReader& m, const Hparams& h, uint32_t layer, const QkvProjection& p, uint32_t window, float scale);

// ffn_down(act(ffn_gate x) * ffn_up x)
ValueId gated_ffn(ModelReader& m, const Hparams& h, uint32_t layer, ValueId x, Activation act);

// x + attention(norm(x)) + ffn(norm(.)): the layers of llama, qwen2 and qwen3, which differ in their QK norm, in their
// biases and in how RoPE pairs elements.
struct PlainDecoder {
  bool interleaved_rope;
  bool norm_qk;
  ModelReader::Bias qkv_bias = ModelReader::Bias::optional;
};
ValueId plain_decoder(ModelReader& m, const Hparams& h, const PlainDecoder& options);

}  // namespace argent
